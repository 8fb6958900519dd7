"""One run of a recipe, as its folder has it."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..scoring.generated import ScoringError, Texts, read_texts
from . import ReportError
from .train_log import TrainLog, read_train_log

_DECODING = re.compile(r"Translated ([\d,]+) sentences .*\(([\d.]+) sentences/s")
# of fairseq-train's options, those that say where and how much it writes
_NOT_OF_THE_EXPERIMENT = ("--seed", "--save-dir", "--user-dir", "--log-format", "--log-interval")


class ScoreCommand(NamedTuple):
    """One way in which a test set was scored, as a line of scripts/score.py."""

    reference: Path
    words: Sequence[str]


@dataclass(frozen=True)
class Run:
    """What there is of one run.

    Attributes:
        content: that of ``results.json``, empty if there is none yet.
        stages: records of the stages that are done, by name.
        training: fairseq-train's options as they count, without seed and places.
        log: what training wrote.
        sentences_per_second: of decoding; None if nothing was decoded.
        generated: what was, by the name that fairseq has for the test set.
        references: the original texts of test sets, where they still are.
        tokenised: how BLEU of the tokens of test sets was computed.
    """

    folder: Path
    content: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    training: Mapping[str, str | None]
    log: TrainLog
    sentences_per_second: float | None
    generated: Mapping[str, Texts]
    references: Mapping[str, Sequence[str]]
    tokenised: Mapping[str, ScoreCommand]

    @property
    def title(self) -> str:
        return self.content.get("title", self.folder.name)

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
    def added(self) -> Sequence[str]:
        """Which of fairseq-train's options the user gave and no recipe."""
        given = _added(self.content.get("command") or "")
        return [name for name in self.training if name in given]

    @property
    def trained(self) -> bool:
        """Whether training is over, or was none of this run's."""
        return "train" in self.stages or bool(self.content.get("checkpoint"))

    @property
    def wanted_updates(self) -> int | None:
        """How long training may last."""
        value = self.training.get("--max-update")
        return int(value) if value and value.isdecimal() else None

    @property
    def resident_memory(self) -> float | None:
        """The most that a process of training had of the machine's, in GiB."""
        resident = self.stages.get("train", {}).get("memory")
        return resident / 2**30 if resident else None

    @property
    def machine(self) -> str | None:
        """What it was trained on, or evaluated."""
        done = [name for name in ("train", "generate", "score") if name in self.stages]
        where = self.stages[done[0]] if done else self.content
        environment = where.get("environment") or {}  # other machines leave none
        gpus = environment.get("gpus") or []
        return f"{len(gpus)} x {gpus[0]}" if gpus else environment.get("processor")


def read_run(folder: Path) -> Run:
    """A run.

    Raises:
        ReportError: there is none, or its files are damaged.
        OSError: one cannot be read.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder} is no folder")
    results = folder / "results.json"
    found = {path.stem: _json(path) for path in sorted(folder.glob("stages/*.json"))}
    records = dict(sorted(found.items(), key=lambda item: item[1].get("finished") or ""))
    if not results.is_file() and not (folder / "stages").is_dir():
        inside = f"; runs in it are {folder}/*" if list(folder.glob("*/results.json")) else ""
        raise ReportError(
            f"{folder} is no run of a recipe: it has neither results.json nor stages{inside}"
        )
    content = _json(results) if results.is_file() else {}
    return Run(
        folder=folder,
        content=content,
        stages=records,
        training=_training(folder, records),
        log=read_train_log(folder / "logs" / "train.log"),
        sentences_per_second=_decoding_speed(folder / "logs" / "generate.log"),
        generated=_generated(folder),
        references=_references(records.get("score", {})),
        tokenised=_tokenised(records.get("score", {})),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ReportError(f"{path} is damaged: it is no object")
    return content


def _training(folder: Path, records: Mapping[str, Any]) -> dict[str, str | None]:
    """The options of fairseq-train, the last value of each, from where the runner notes them."""
    begun = folder / "stages" / "train.begun"
    record = records.get("train") or (_json(begun) if begun.is_file() else {})
    lines = record.get("essence") or record.get("commands") or ()
    words = next((shlex.split(line) for line in lines if line.startswith("fairseq-train ")), [])
    options: dict[str, str | None] = {}
    name = ""
    for word in words[2:]:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            options[name] = value if equals else None
        elif name:
            before = options[name]
            options[name] = word if before is None else f"{before} {word}"
    return {name: value for name, value in options.items() if name not in _NOT_OF_THE_EXPERIMENT}


def _decoding_speed(log: Path) -> float | None:
    """Sentences a second over all test sets."""
    if not log.is_file():
        return None
    found = _DECODING.findall(log.read_text(encoding="utf-8", errors="replace"))
    counts = [(int(count.replace(",", "")), float(rate)) for count, rate in found]
    seconds = sum(count / rate for count, rate in counts if rate)
    return sum(count for count, _ in counts) / seconds if seconds else None


def _score_commands(score: Mapping[str, Any]) -> Iterator[tuple[str, ScoreCommand]]:
    """Those that have a reference, with fairseq's name of the test set."""
    for line in score.get("commands", ()):
        words = shlex.split(line)
        if "--reference" in words and "--hypothesis" in words:
            subset = Path(_value(words, "--hypothesis")).name.split(".")[1]
            yield subset, ScoreCommand(Path(_value(words, "--reference")), words)


def _value(words: Sequence[str], option: str) -> str:
    return words[words.index(option) + 1]


def _references(score: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """What the outputs were compared with, as far as the data are there; of several references
    of a test set the first."""
    found: dict[str, Sequence[str]] = {}
    for subset, command in _score_commands(score):
        if command.reference.is_file():
            found.setdefault(subset, read_texts(command.reference).detokenised)
    return found


def _tokenised(score: Mapping[str, Any]) -> dict[str, ScoreCommand]:
    """How each test set's tokens were scored, where they were."""
    return {
        subset: command
        for subset, command in _score_commands(score)
        if "--tokenize" in command.words and _value(command.words, "--tokenize") == "none"
    }


def _added(command: str) -> list[str]:
    """The names of the options that follow ``--`` in the recipe's command."""
    words = shlex.split(command)
    following = words[words.index("--") + 1 :] if "--" in words else []
    return [word.partition("=")[0] for word in following if word.startswith("--")]


def _generated(folder: Path) -> dict[str, Texts]:
    found = {}
    for path in sorted(folder.glob("generated.*.txt")):
        try:
            found[path.name.split(".")[1]] = read_texts(path)
        except ScoringError:  # as good as not there
            continue
    return found
