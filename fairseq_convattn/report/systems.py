"""Groups runs into systems: the same experiment with several seeds. Compares systems of a
recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ..run_records import parse_options
from . import ReportError
from .runs import Run, given_options
from .significance import Comparison, compare

_BASELINE = "attention"


@dataclass(frozen=True)
class System:
    """Runs that differ only in their seeds."""

    label: str
    runs: Sequence[Run]

    @property
    def mixer(self) -> str:
        return self.runs[0].mixer


@dataclass(frozen=True)
class Section:
    """The systems of one recipe.

    Attributes:
        baseline: the system that others are compared with, or None.
        comparisons: by test set and system; empty if nothing can be compared, and for smoke tests,
            whose scores mean nothing.
    """

    title: str
    smoke: bool
    systems: Sequence[System]
    baseline: System | None
    comparisons: Mapping[tuple[str, str], Comparison | None]

    @property
    def runs(self) -> list[Run]:
        return [run for system in self.systems for run in system.runs]


def read_sections(folders: Sequence[Path]) -> list[Section]:
    """The runs of folders by recipe, in the given order.

    Raises:
        ReportError: a folder is given twice, or is not a run.
        OSError: a file cannot be read.
    """
    resolved = [folder.resolve() for folder in folders]
    for folder in folders:
        if resolved.count(folder.resolve()) > 1:
            raise ReportError(f"{folder} is given twice")
    by_recipe: dict[tuple[str, bool], list[Run]] = {}
    for run in map(Run, folders):
        by_recipe.setdefault((run.content["title"], run.smoke), []).append(run)
    return [_section(*key, _systems(runs)) for key, runs in by_recipe.items()]


def _section(title: str, smoke: bool, systems: Sequence[System]) -> Section:
    """A section whose baseline is the attention system most similar to the recipe's own."""
    attention = [system for system in systems if system.mixer == _BASELINE]
    baseline = min(attention, key=lambda system: len(_given(system.runs[0])), default=None)
    comparisons = _comparisons(baseline, systems) if baseline and not smoke else {}
    return Section(title, smoke, systems, baseline, comparisons)


def _systems(runs: Sequence[Run]) -> list[System]:
    """Group the runs of one recipe by experiment."""
    grouped: dict[tuple, list[Run]] = {}
    for run in runs:
        training = tuple(sorted(run.training.items(), key=str))
        given = tuple(given_options(run.content))  # everything known before training begins
        made = run.content.get("checkpoint"), run.content.get("precision")
        key = (run.mixer, *made, training or given)
        while any(other.seed == run.seed for other in grouped.get(key, ())):
            key += ("once more",)  # a duplicate, not a further seed
        grouped.setdefault(key, []).append(run)
    groups = list(grouped.values())
    labels = [_label(group[0], [other[0] for other in groups]) for group in groups]
    folders = _told_apart([group[0].folder for group in groups])
    return [
        System(text if labels.count(text) == 1 else f"{text}, {folder}", group)
        for text, folder, group in zip(labels, folders, groups, strict=True)
    ]


def _told_apart(folders: Sequence[Path]) -> list[Path]:
    """The shortest ends of the paths, as many parts of each, that are not equal."""
    for parts in count(1):
        ends = [Path(*folder.resolve().parts[-parts:]) for folder in folders]
        if len({*ends}) == len(folders):
            return ends


def _label(run: Run, others: Sequence[Run]) -> str:
    """A label: the mixer, the user's options, and options and precision that differ among
    ``others`` with this mixer."""
    if run.checkpoint:
        return f"{run.mixer}, {run.checkpoint}"
    same = [other for other in others if other.mixer == run.mixer]
    alike = [other.training for other in same if other.training]
    given = _given(run)
    own = [
        name if value is None else f"{name} {value}"
        for name, value in run.training.items()
        if name in given or any(training.get(name, "") != value for training in alike)
    ]
    if len({other.content.get("precision") for other in same}) > 1:
        own.append(str(run.content.get("precision")))
    return ", ".join([run.mixer, *own])


def _given(run: Run) -> Mapping[str, str | None]:
    return parse_options(given_options(run.content))


def _comparisons(
    baseline: System, systems: Sequence[System]
) -> dict[tuple[str, str], Comparison | None]:
    """By the reference's name, as fairseq's of a test set says little."""
    references = {
        subset: Path(scoring["--reference"]).name
        for run in baseline.runs
        for subset, scoring in run.tokenised.items()
    }
    found = {
        (name, system.label): compare(baseline.runs, system.runs, subset)
        for subset, name in references.items()
        for system in systems
        if system is not baseline
    }
    return found if any(found.values()) else {}
