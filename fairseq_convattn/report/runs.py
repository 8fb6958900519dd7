"""One run of a recipe, as its folder has it."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..run_records import Settings, settings
from ..scoring.generated import ScoringError, Texts, read_texts
from . import ReportError
from .train_log import TrainLog, read_train_log

_DECODING = re.compile(r"Translated ([\d,]+) sentences .*\(([\d.]+) sentences/s")
_GENERATED = "generated.*.txt"
# of a training's settings, those that say where and how much it writes
_NOT_OF_THE_EXPERIMENT = (
    *("command", "--seed", "--save-dir", "--user-dir", "--log-format", "--log-interval"),
)


class Run:
    """What there is of one run.

    Attributes:
        content: that of ``results.json``, empty if there is none yet.
        stages: records of the stages that are done, by name.

    Raises:
        ReportError: there is none, or its files are damaged.
        OSError: one cannot be read.
    """

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise ReportError(f"{folder} is no folder")
        results = folder / "results.json"
        if not results.is_file() and not (folder / "stages").is_dir():
            inside = f"; runs in it are {folder}/*" if list(folder.glob("*/results.json")) else ""
            raise ReportError(
                f"{folder} is no run of a recipe: it has neither results.json nor stages{inside}"
            )
        self.folder = folder
        self.content: Mapping[str, Any] = read_json(results) if results.is_file() else {}
        found = {path.stem: read_json(path) for path in folder.glob("stages/*.json")}
        self.stages = dict(sorted(found.items(), key=lambda item: item[1].get("finished") or ""))

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

    @property
    def environment(self) -> Mapping[str, Any]:
        """That of training, or of evaluation; empty if it was on other machines."""
        done = [name for name in ("train", "generate", "score") if name in self.stages]
        return (self.stages[done[0]] if done else self.content).get("environment") or {}

    @cached_property
    def training(self) -> Settings:
        """fairseq-train's options as they count, without seed and places, also before it is
        done."""
        begun = self.folder / "stages" / "train.begun"
        record = self.stages.get("train") or (read_json(begun) if begun.is_file() else {})
        found = next(iter(record.get("settings", ())), {})
        return {k: v for k, v in found.items() if k not in _NOT_OF_THE_EXPERIMENT}

    @cached_property
    def given(self) -> Sequence[str]:
        """The options that the user gave to fairseq-train, after ``--``."""
        words = shlex.split(self.content.get("command") or "")
        return list(settings(words[words.index("--") + 1 :])) if "--" in words else []

    @cached_property
    def log(self) -> TrainLog:
        return read_train_log(self.folder / "logs" / "train.log")

    @property
    def sentences_per_second(self) -> float | None:
        """Of decoding, over all test sets; None if nothing was decoded."""
        log = self.folder / "logs" / "generate.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        counts = [(int(n.replace(",", "")), float(rate)) for n, rate in _DECODING.findall(text)]
        seconds = sum(count / rate for count, rate in counts if rate)
        return sum(count for count, _ in counts) / seconds if seconds else None

    @cached_property
    def generated(self) -> Mapping[str, Texts]:
        """What was generated, by the name that fairseq has for the test set."""
        found = {}
        for path in sorted(self.folder.glob(_GENERATED)):
            try:
                found[_subset(path)] = read_texts(path)
            except ScoringError:  # as good as not there
                continue
        return found

    @cached_property
    def scorings(self) -> Mapping[str, Sequence[Settings]]:
        """How it was scored against references, options of scripts/score.py by the same names."""
        found: dict[str, list[Settings]] = {}
        for scoring in self.stages.get("score", {}).get("settings", ()):
            hypothesis = Path(scoring.get("--hypothesis") or "")
            if scoring.get("--reference") and hypothesis.match(_GENERATED):
                found.setdefault(_subset(hypothesis), []).append(scoring)
        return found

    def tokenised(self, subset: str) -> Settings | None:
        """How BLEU of a test set's tokens was computed; None where it was not."""
        scorings = self.scorings.get(subset, ())
        return next((found for found in scorings if found.get("--tokenize") == "none"), None)


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


def _subset(generated: Path) -> str:
    """``test1`` of ``generated.test1.txt``."""
    return generated.name.split(".")[1]
