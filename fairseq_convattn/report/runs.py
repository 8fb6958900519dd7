"""One run of a recipe, read from its folder."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..durable import entries, require_no_links
from ..run_records import CommandOptions, read_json
from ..scoring.generated import ScoringError, Texts, read_texts
from . import ReportError
from .train_log import TrainLog, read_train_log

NEEDED = ("title", "paper", "mixer", "command", "environment", "scores")
"""The entries of ``results.json`` that every report needs."""

_NEEDED_OF_A_SCORE = ("name", "score", "signature", "published", "published_in")
_DECODING = re.compile(r"Translated ([\d,]+) sentences .*\(([\d.]+) sentences/s")
_GENERATED = "generated.*.txt"
_SHOWN = ("results.json", "stages", "logs")
# settings of a training that say where and how much it writes, and how it reads
_NOT_OF_THE_EXPERIMENT = (
    *("command", "--seed", "--save-dir", "--user-dir", "--log-format", "--log-interval"),
    "--num-workers",
)
_WORKERS = re.compile(r"(?<!\S)--num-workers[ =]\d+ ?")


class Run:
    """The recorded results of one run.

    Attributes:
        content: that of ``results.json``, which recipes write before the first stage.
        stages: records of the stages that are done, by name, the first one first.

    Raises:
        ReportError: there is no run, or its files are damaged or elsewhere.
        OSError: a file cannot be read.
    """

    def __init__(self, folder: Path):
        results = folder / "results.json"
        if not folder.is_dir():
            raise ReportError(f"{folder} is not a folder")
        if not results.is_file():
            inside = f"; runs in it are {folder}/*" if list(folder.glob("*/results.json")) else ""
            raise ReportError(f"{folder} is not a run of a recipe: it has no results.json{inside}")
        _require_no_links(folder)
        self.folder = folder
        self.content = read_object(results, NEEDED)
        self.mixer: str = self.content["mixer"]
        self.seed: int | None = self.content.get("seed")
        self.smoke = bool(self.content.get("smoke"))
        self.scores: Sequence[Mapping[str, Any]] = self.content["scores"]
        found = {path.stem: read_object(path) for path in folder.glob("stages/*.json")}
        self.stages = dict(sorted(found.items(), key=lambda item: item[1].get("finished", "")))

    @property
    def checkpoint(self) -> str | None:
        """The name of the evaluated file; None for a run that trains."""
        path = self.content.get("checkpoint")
        return Path(path).name if path else None

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of training, or of evaluation; empty if that ran on other machines."""
        done = [name for name in ("train", "generate", "score") if name in self.stages]
        return (self.stages[done[0]] if done else self.content).get("environment") or {}

    @cached_property
    def training(self) -> CommandOptions:
        """The options of fairseq-train that affect results, without seed and paths; available from
        the start of training."""
        begun = self.folder / "stages" / "train.begun"
        record = self.stages.get("train") or (read_object(begun) if begun.is_file() else {})
        found = next(iter(record.get("settings", ())), {})
        return {k: v for k, v in found.items() if k not in _NOT_OF_THE_EXPERIMENT}

    @cached_property
    def log(self) -> TrainLog:
        """The log of fairseq-train; empty if there is none."""
        return read_train_log(self._log("train").split("\n"))

    @property
    def sentences_per_second(self) -> float | None:
        """Decoding speed over all test sets; None if nothing was decoded."""
        found = _DECODING.findall(self._log("generate"))
        counts = [(int(number.replace(",", "")), float(rate)) for number, rate in found]
        seconds = sum(count / rate for count, rate in counts if rate)
        return sum(count for count, _ in counts) / seconds if seconds else None

    def _log(self, stage: str) -> str:
        path = self.folder / "logs" / f"{stage}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    @cached_property
    def generated(self) -> Mapping[str, Texts]:
        """The generated texts, by fairseq's name of the test set."""
        found = {}
        for path in sorted(self.folder.glob(_GENERATED)):
            try:
                found[_subset(path)] = read_texts(path)
            except ScoringError:  # treated as missing
                continue
        return found

    @cached_property
    def tokenised(self) -> Mapping[str, CommandOptions]:
        """Options of ``convattn score`` that computed tokenised BLEU against a reference, by the
        names of ``generated``."""
        found: dict[str, CommandOptions] = {}
        record = self.stages.get("score", {})
        for scoring in record.get("settings", ()):
            hypothesis = Path(scoring.get("--hypothesis") or "")
            of_tokens = scoring.get("--tokenize") == "none" and "--reference" in scoring
            if of_tokens and hypothesis.match(_GENERATED):
                directory = self.folder / record["directory"] if "directory" in record else Path()
                reference = directory / scoring["--reference"]
                found.setdefault(_subset(hypothesis), {**scoring, "--reference": str(reference)})
        return found


def _require_no_links(run: Path) -> None:
    """Check the files of a run that a report shows.

    Raises:
        ReportError: one is a symbolic link, or cannot be seen.
    """
    try:
        shown = [x for x in entries(run, "run") if x.name in _SHOWN or x.match(_GENERATED)]
        require_no_links(shown, "run")
        for folder in ("stages", "logs"):
            require_no_links(entries(run / folder, "run"), "run")
    except FileExistsError as error:
        raise ReportError(error) from error
    except NotADirectoryError as error:
        raise ReportError(f"{run} is damaged: {error.filename} is a file, not a folder") from error


def given_options(content: Mapping[str, Any]) -> list[str]:
    """The user's own arguments of fairseq-train, after ``--``, as words; without the number of
    workers, which does not affect learning.

    Args:
        content: that of ``results.json``.
    """
    words = shlex.split(content["command"])
    given = words[words.index("--") + 1 :] if "--" in words else []
    return shlex.split(_WORKERS.sub("", shlex.join(given)))


def machine(environment: Mapping[str, Any]) -> str | None:
    """The GPUs of a machine or, without any, its processor and how many of its cores there are."""
    if gpus := environment.get("gpus"):
        return f"{len(gpus)} x {gpus[0]}"
    processor, cores = environment.get("processor"), environment.get("processors")
    return f"{processor}, {cores} cores" if processor and cores else processor


def read_object(path: Path, needed: Collection[str] = ()) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        ReportError: an entry that is needed is missing, or a score is damaged.
        OSError: it cannot be read.
    """
    content = read_json(path)
    if not content.keys() >= set(needed):
        raise ReportError(f"{path} is damaged: it needs {', '.join(needed)}")
    scores = content["scores"] if "scores" in needed else []
    if not isinstance(scores, list) or not all(map(_is_whole, scores)):
        raise ReportError(f"{path} is damaged: a score needs {', '.join(_NEEDED_OF_A_SCORE)}")
    return content


def _is_whole(score: Any) -> bool:
    return isinstance(score, dict) and score.keys() >= set(_NEEDED_OF_A_SCORE)


def _subset(generated: Path) -> str:
    """``test1`` of ``generated.test1.txt``."""
    return generated.name.split(".")[1]
