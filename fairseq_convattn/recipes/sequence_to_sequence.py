"""Recipes of encoder-decoders: translation and summarization."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ..run_records import read_json
from .command import Command, CommandOptions, Stage, convattn, options, user_dir
from .devices import Batch
from .recipe import Recipe, Score
from .settings import Settings

_SHRUNK = options(
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 "
    "--decoder-attention-heads 4 --encoder-layers 2 --decoder-layers 2"
)
_SMOKE_DECODING = options("--batch-size 32 --max-len-b 20 --num-workers 0")

TOKENISED = "bleu --tokenize none"
"""BLEU of tokenised text, that of Moses' multi-bleu.perl."""
DETOKENISED = {"score": ("sacremoses",)}
PREPARED_HERE = {"prepare": ("subword_nmt", "sacremoses"), **DETOKENISED}
"""Modules for recipes that tokenise the text and split it into subwords themselves."""


@dataclass(frozen=True)
class Scoring:
    """One way to score generated text.

    Attributes:
        reference: the file of the prepared data's ``text`` that it is compared with.
        metric: of ``convattn score``, with options.
        name: distinguishes it from the paper's way, whose name is empty.
        reference_options: options for this file, left out if there is none.
        baseline: the file of ``text`` that is scored instead of what was generated.
    """

    reference: str
    metric: str
    name: str = ""
    reference_options: str = ""
    baseline: str = ""


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence(Recipe):
    """A recipe whose scores are of generated text.

    Attributes:
        decoding: fairseq-generate's options.
        tests: ways to score each test set, the paper's first, by the set's name in the paper.
    """

    decoding: CommandOptions
    tests: Mapping[str, Sequence[Scoring]]

    shrunk: ClassVar[CommandOptions] = _SHRUNK
    smoke_batch: ClassVar[Batch] = Batch(2048, 1, 1)

    def generate(self, settings: Settings) -> Stage:
        commands = [self._generate(settings, _subset(n)) for n in range(len(self.tests))]
        return Stage("generate", commands)

    def score(self, settings: Settings) -> Stage:
        scorings = self._scorings(settings)
        return Stage("score", [_score(settings, subset, how) for _, subset, how in scorings])

    def scores(self, settings: Settings) -> list[Score]:
        found = []
        for test, subset, scoring in self._scorings(settings):
            report = read_json(_scores(settings, subset, scoring))
            way = f", {scoring.name}" if scoring.name else ""
            same = report["signature"], scoring.name if scoring.baseline else ""
            found += [
                Score(f"{test} {name}{way}", x["score"], x["confidence"], *same)
                for name, x in report["scores"].items()
            ]
        return found

    def _scorings(self, settings: Settings) -> Iterator[tuple[str, str, Scoring]]:
        """The test set, fairseq's name of it, and how it is scored."""
        for number, (test, scorings) in enumerate(self.tests.items()):
            for scoring in scorings:
                if _has_text(settings) or not scoring.baseline:
                    yield test, _subset(number), scoring

    def _generate(self, settings: Settings, subset: str) -> Command:
        decoding = dict(self.decoding)
        if settings.smoke:
            decoding |= {"--min-len": "1"} if "--min-len" in decoding else {}
            decoding |= _SMOKE_DECODING
        return Command(
            ["fairseq-generate", str(settings.binarised)],
            {
                "--user-dir": user_dir(),
                "--task": self.task,
                "--gen-subset": subset,
                "--path": str(self.model(settings)),
                **decoding,
                "--required-batch-size-multiple": "1",
            },
            stdout=_generated(settings, subset),
            scaling=settings.devices.one(),
        )


def _subset(number: int) -> str:
    """fairseq's name of a test set."""
    return f"test{number or ''}"


def _score(settings: Settings, subset: str, scoring: Scoring) -> Command:
    text = settings.data / "text"
    words = [*convattn(), "score", "--metric", *shlex.split(scoring.metric)]
    if _has_text(settings):
        words += ["--reference", str(text / scoring.reference)]
        words += shlex.split(scoring.reference_options)
    hypothesis = text / scoring.baseline if scoring.baseline else _generated(settings, subset)
    return Command(
        words,
        {"--hypothesis": str(hypothesis), "--format": "json"},
        stdout=_scores(settings, subset, scoring),
    )


def _has_text(settings: Settings) -> bool:
    """Whether the data include raw text; otherwise the reference is the targets that
    fairseq-generate prints."""
    return settings.binarised != settings.data


def _generated(settings: Settings, subset: str) -> Path:
    return settings.output / f"generated.{subset}.txt"


def _scores(settings: Settings, subset: str, scoring: Scoring) -> Path:
    name = f"{subset}.{scoring.name}" if scoring.name else subset
    return settings.output / f"scores.{name}.json"


def parallel(files: Mapping[str, str], source: str, target: str) -> dict[str, str]:
    """Files of a release for both languages, with their contents. {} stands for the language in
    names and for the side in contents."""
    return {
        file.format(language): content.format(side)
        for file, content in files.items()
        for language, side in ((source, "source"), (target, "target"))
    }


@dataclass(frozen=True, kw_only=True)
class Translation(SequenceToSequence):
    target_language: str = field()  # so that the base's None is no default
    needs: Mapping[str, Sequence[str]] = field(default_factory=lambda: PREPARED_HERE)

    task: ClassVar[str] = "translation"


@dataclass(frozen=True, kw_only=True)
class Summarization(SequenceToSequence):
    task: ClassVar[str] = "summarization"
