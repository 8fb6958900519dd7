"""Runs of the same experiment with several seeds are one system; systems of a recipe compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from . import ReportError
from .runs import Run
from .significance import Comparison, compare

_BASELINE = "attention"


@dataclass(frozen=True)
class Result:
    """One score of a system.

    Attributes:
        values: one of each seed that has it.
        interval: of the texts, with the first of the seeds.
    """

    values: Sequence[float]
    interval: tuple[float, float] | None
    signature: str

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of seeds."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class System:
    """Runs that differ in their seeds alone."""

    label: str
    runs: Sequence[Run]

    @property
    def mixer(self) -> str | None:
        return self.runs[0].mixer

    def result(self, name: str) -> Result | None:
        """A score by name; None if no run has it yet."""
        found = [score for run in self.runs for score in run.scores if score["name"] == name]
        if not found:
            return None
        values = [score["score"] for score in found]
        return Result(values, found[0].get("confidence"), found[0]["signature"])


@dataclass(frozen=True)
class Section:
    """The systems of one recipe.

    Attributes:
        baseline: what the others are compared with; None if no system is one.
        comparisons: how they do, by test set and system; empty if nothing is there to compare, and
            for smoke tests, whose scores mean nothing.
    """

    title: str
    smoke: bool
    systems: Sequence[System]
    baseline: System | None
    comparisons: Mapping[tuple[str, str], Comparison | None]

    @property
    def runs(self) -> list[Run]:
        return [run for system in self.systems for run in system.runs]

    @property
    def paper(self) -> str | None:
        """Where the published figures stand; None if there are none."""
        found = (
            score.get("published_in") or run.content.get("paper")
            for run in self.runs
            for score in run.scores
            if score.get("published")
        )
        return next(found, None)

    @property
    def differing_texts(self) -> list[str]:
        """The original texts that are not the same in all runs that have them."""
        sums: dict[str, set[str]] = {}
        for run in self.runs:
            for name, digest in (run.content.get("data") or {}).items():
                sums.setdefault(name, set()).add(digest)
        return [name for name, found in sums.items() if name.startswith("text/") and len(found) > 1]

    @property
    def score_names(self) -> list[str]:
        return list(dict.fromkeys(score["name"] for run in self.runs for score in run.scores))

    def published(self, name: str) -> Mapping[str, float]:
        """The published figures of a score, by mixer."""
        scores = (score for run in self.runs for score in run.scores if score["name"] == name)
        return next((score["published"] for score in scores if score.get("published")), {})


def read_sections(folders: Sequence[Path]) -> list[Section]:
    """The runs of folders, in the order in which they are given.

    Raises:
        ReportError: a folder is there twice, or is no run.
        OSError: a file cannot be read.
    """
    resolved = [folder.resolve() for folder in folders]
    for folder in folders:
        if resolved.count(folder.resolve()) > 1:
            raise ReportError(f"{folder} is given twice")
    by_recipe: dict[tuple[str, bool], list[Run]] = {}
    for run in map(Run, folders):
        by_recipe.setdefault((run.title, run.smoke), []).append(run)
    return [_section(*key, _systems(runs)) for key, runs in by_recipe.items()]


def _section(title: str, smoke: bool, systems: Sequence[System]) -> Section:
    baseline = _baseline(systems)
    comparisons = _comparisons(baseline, systems) if baseline and not smoke else {}
    return Section(title, smoke, systems, baseline, comparisons)


def _systems(runs: Sequence[Run]) -> list[System]:
    """Runs of one recipe, those of the same experiment together."""
    grouped: dict[tuple, list[Run]] = {}
    for run in runs:
        key, again = _experiment(run), 0
        while any(other.seed == run.seed for other in grouped.get((key, again), ())):
            again += 1  # the same once more is no further seed
        grouped.setdefault((key, again), []).append(run)
    groups = list(grouped.values())
    labels = [label(group[0], [other[0] for other in groups]) for group in groups]
    return [
        System(text if labels.count(text) == 1 else f"{text}, {group[0].folder.name}", group)
        for text, group in zip(labels, groups, strict=True)
    ]


def _experiment(run: Run) -> tuple:
    checkpoint = run.content.get("checkpoint")
    training = tuple(sorted(run.training.items(), key=str))
    return run.mixer, checkpoint, training, None if training or checkpoint else run.folder


def label(run: Run, others: Sequence[Run]) -> str:
    """The mixer, the options that a user gave, and those in which ``others`` with it differ."""
    if run.mixer is None:
        return run.folder.name
    if run.content.get("checkpoint"):
        return f"{run.mixer}, {Path(run.content['checkpoint']).name}"
    alike = [other.training for other in others if other.mixer == run.mixer and other.training]
    own = [
        name if value is None else f"{name} {value}"
        for name, value in run.training.items()
        if name in run.given or any(training.get(name, "") != value for training in alike)
    ]
    return ", ".join([run.mixer, *own])


def _baseline(systems: Sequence[System]) -> System | None:
    """The attention that is most like the recipe's own."""
    attention = [system for system in systems if system.mixer == _BASELINE]
    return min(attention, key=lambda system: len(system.runs[0].given), default=None)


def _comparisons(
    baseline: System, systems: Sequence[System]
) -> dict[tuple[str, str], Comparison | None]:
    """By the reference's name, as fairseq's of a test set says little; with both if need be."""
    scored = {
        subset: run.tokenised(subset)
        for run in baseline.runs
        for subset in run.scorings
        if run.tokenised(subset)
    }
    names = {subset: Path(scoring["--reference"]).name for subset, scoring in scored.items()}
    if len(set(names.values())) < len(names):
        names = {subset: f"{name} ({subset})" for subset, name in names.items()}
    found = {
        (name, system.label): compare(baseline.runs, system.runs, subset)
        for subset, name in names.items()
        for system in systems
        if system is not baseline
    }
    return found if any(found.values()) else {}
