"""One run of a recipe, as its folder has it."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..run_records import Settings, recorded_settings, settings
from ..scoring.generated import ScoringError, Texts, read_texts
from . import ReportError
from .train_log import TrainLog, read_train_log

_DECODING = re.compile(r"Translated ([\d,]+) sentences .*\(([\d.]+) sentences/s")
_GENERATED = "generated.*.txt"
# of a training's settings, those that say where and how much it writes
_NOT_OF_THE_EXPERIMENT = (
    *("command", "--seed", "--save-dir", "--user-dir", "--log-format", "--log-interval"),
)


@dataclass(frozen=True)
class Run:
    """What there is of one run.

    Attributes:
        content: that of ``results.json``, empty if there is none yet.
        stages: records of the stages that are done, by name.
        training: fairseq-train's options as they count, without seed and places.
        given: those of its options that the user gave and no recipe.
        log: what training wrote.
        sentences_per_second: of decoding; None if nothing was decoded.
        generated: what was, by the name that fairseq has for the test set.
        scorings: how it was scored, options of scripts/score.py by the same names.
    """

    folder: Path
    content: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    training: Settings
    given: Sequence[str]
    log: TrainLog
    sentences_per_second: float | None
    generated: Mapping[str, Texts]
    scorings: Mapping[str, Sequence[Settings]]

    @property
    def title(self) -> str:
        return self.content.get("title", self.folder.name)

    @property
    def mixer(self) -> str | None:
        return self.content.get("mixer")

    @property
    def seed(self) -> int | None:
        return self.content.get("seed")

    @property
    def smoke(self) -> bool:
        return bool(self.content.get("smoke"))

    @property
    def scores(self) -> Sequence[Mapping[str, Any]]:
        return self.content.get("scores", ())

    @property
    def trained(self) -> bool:
        """Whether training is over, or was none of this run's."""
        return "train" in self.stages or bool(self.content.get("checkpoint"))

    def reference(self, subset: str) -> Path | None:
        """The file that a test set was first compared with."""
        scorings = self.scorings.get(subset)
        return Path(scorings[0]["--reference"]) if scorings else None

    def tokenised(self, subset: str) -> Settings | None:
        """How BLEU of a test set's tokens was computed; None where it was not."""
        scorings = self.scorings.get(subset, ())
        return next((found for found in scorings if found.get("--tokenize") == "none"), None)

    @property
    def environment(self) -> Mapping[str, Any]:
        """That of training, or of evaluation; empty if it was on other machines."""
        done = [name for name in ("train", "generate", "score") if name in self.stages]
        return (self.stages[done[0]] if done else self.content).get("environment") or {}

    @property
    def machine(self) -> str | None:
        return machine(self.environment)


def read_run(folder: Path) -> Run:
    """A run.

    Raises:
        ReportError: there is none, or its files are damaged.
        OSError: one cannot be read.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder} is no folder")
    results = folder / "results.json"
    if not results.is_file() and not (folder / "stages").is_dir():
        inside = f"; runs in it are {folder}/*" if list(folder.glob("*/results.json")) else ""
        raise ReportError(
            f"{folder} is no run of a recipe: it has neither results.json nor stages{inside}"
        )
    content = read_json(results) if results.is_file() else {}
    found = {path.stem: read_json(path) for path in folder.glob("stages/*.json")}
    stages = dict(sorted(found.items(), key=lambda item: item[1].get("finished") or ""))
    begun = folder / "stages" / "train.begun"
    record = stages.get("train") or (read_json(begun) if begun.is_file() else {})
    training = next(iter(recorded_settings(record)), {})
    return Run(
        folder=folder,
        content=content,
        stages=stages,
        training={k: v for k, v in training.items() if k not in _NOT_OF_THE_EXPERIMENT},
        given=given_options(content.get("command") or ""),
        log=read_train_log(folder / "logs" / "train.log"),
        sentences_per_second=_decoding_speed(folder / "logs" / "generate.log"),
        generated=_generated(folder),
        scorings=_scorings(stages.get("score", {})),
    )


def machine(environment: Mapping[str, Any]) -> str | None:
    """Its GPUs or, without any, its processor."""
    gpus = environment.get("gpus") or []
    return f"{len(gpus)} x {gpus[0]}" if gpus else environment.get("processor")


def read_json(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        ReportError: it holds none.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ReportError(f"{path} is damaged: it is no object")
    return content


def given_options(command: str) -> list[str]:
    """The names of the options that the user gave to fairseq-train, after ``--``."""
    words = shlex.split(command)
    return list(settings(words[words.index("--") + 1 :])) if "--" in words else []


def _decoding_speed(log: Path) -> float | None:
    """Sentences a second over all test sets."""
    if not log.is_file():
        return None
    found = _DECODING.findall(log.read_text(encoding="utf-8", errors="replace"))
    counts = [(int(count.replace(",", "")), float(rate)) for count, rate in found]
    seconds = sum(count / rate for count, rate in counts if rate)
    return sum(count for count, _ in counts) / seconds if seconds else None


def _scorings(score: Mapping[str, Any]) -> dict[str, list[Settings]]:
    """Of the commands that have a reference, by fairseq's name of the test set."""
    found: dict[str, list[Settings]] = {}
    for scoring in recorded_settings(score):
        hypothesis = Path(scoring.get("--hypothesis") or "")
        if scoring.get("--reference") and hypothesis.match(_GENERATED):
            found.setdefault(_subset(hypothesis), []).append(scoring)
    return found


def _generated(folder: Path) -> dict[str, Texts]:
    found = {}
    for path in sorted(folder.glob(_GENERATED)):
        try:
            found[_subset(path)] = read_texts(path)
        except ScoringError:  # as good as not there
            continue
    return found


def _subset(generated: Path) -> str:
    """``test1`` of ``generated.test1.txt``."""
    return generated.name.split(".")[1]
