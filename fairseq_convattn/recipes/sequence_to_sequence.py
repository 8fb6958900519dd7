"""Recipes of encoder-decoders: translation and summarization."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from .command import Command, Options, Stage, options
from .devices import Batch
from .recipe import Recipe, Score
from .settings import Settings, script, user_dir

_SHRUNK = options(
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 "
    "--decoder-attention-heads 4 --encoder-layers 2 --decoder-layers 2"
)
_SMOKE_DECODING = options("--batch-size 32 --max-len-b 20 --num-workers 0")

DETOKENISED = {"score": ("sacremoses",)}
PREPARED_HERE = {"prepare": ("subword_nmt", "sacremoses"), **DETOKENISED}
"""What recipes need that tokenise and split the text themselves."""


@dataclass(frozen=True)
class Scoring:
    """One way to score what was generated.

    Attributes:
        reference: the file of the prepared data's ``text`` that it is compared with.
        metric: of scripts/score.py, with options.
        reference_options: those that are about this file, left out where there is none.
        baseline: the file of ``text`` that is scored instead of what was generated.
        published: the paper's figures by mixer, for each score that the metric gives.
        name: what distinguishes it from the paper's, which has none.
    """

    reference: str
    metric: Sequence[str]
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    name: str = ""
    reference_options: Sequence[str] = ()
    baseline: str = ""


@dataclass(frozen=True)
class TestSet:
    """What is generated and how it is scored.

    Attributes:
        name: as papers call it.
        scorings: the paper's first.
        subset: fairseq's name of it.
    """

    name: str
    scorings: Sequence[Scoring]
    subset: str = "test"


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence(Recipe):
    """A recipe that is scored by what a model writes.

    Attributes:
        decoding: fairseq-generate's options.
    """

    decoding: Options
    tests: Sequence[TestSet]

    shrunk: ClassVar[Options] = _SHRUNK
    smoke_batch: ClassVar[Batch] = Batch(2048, 1, 1)

    def generate(self, settings: Settings) -> Stage:
        return Stage("generate", [self._generate(settings, test) for test in self.tests])

    def score(self, settings: Settings) -> Stage:
        return Stage("score", [self._score(settings, *each) for each in self._scorings(settings)])

    def scores(self, settings: Settings) -> list[Score]:
        scorings = self._scorings(settings)
        return [score for each in scorings for score in _read_scores(settings, *each)]

    def _scorings(self, settings: Settings) -> list[tuple[TestSet, Scoring]]:
        return [
            (test, scoring)
            for test in self.tests
            for scoring in test.scorings
            if _has_text(settings) or not scoring.baseline
        ]

    def _generate(self, settings: Settings, test: TestSet) -> Command:
        decoding = dict(self.decoding)
        if settings.smoke:
            decoding |= {"--min-len": "1"} if "--min-len" in decoding else {}
            decoding |= _SMOKE_DECODING
        return Command(
            ["fairseq-generate", str(settings.binarised)],
            {
                "--user-dir": user_dir(),
                "--task": self.task,
                "--gen-subset": test.subset,
                "--path": str(self.model(settings)),
                **decoding,
                "--required-batch-size-multiple": "1",
            },
            stdout=_generated(settings, test),
            scaling=settings.devices.one(),
        )

    def _score(self, settings: Settings, test: TestSet, scoring: Scoring) -> Command:
        text = settings.data / "text"
        reference = ("--reference", str(text / scoring.reference), *scoring.reference_options)
        compared = reference if _has_text(settings) else ()
        hypothesis = text / scoring.baseline if scoring.baseline else _generated(settings, test)
        return Command(
            ["python", script("score.py"), "--metric", *scoring.metric, *compared],
            {"--hypothesis": str(hypothesis), "--format": "json"},
            stdout=_scores(settings, test, scoring),
        )


def _has_text(settings: Settings) -> bool:
    """A binarised test set alone has only its targets, which fairseq-generate prints."""
    return settings.binarised != settings.data


def _generated(settings: Settings, test: TestSet) -> Path:
    return settings.output / f"generated.{test.subset}.txt"


def _scores(settings: Settings, test: TestSet, scoring: Scoring) -> Path:
    name = f"{test.subset}.{scoring.name}" if scoring.name else test.subset
    return settings.output / f"scores.{name}.json"


def _read_scores(settings: Settings, test: TestSet, scoring: Scoring) -> list[Score]:
    report = json.loads(_scores(settings, test, scoring).read_text(encoding="utf-8"))
    return [
        Score(
            f"{test.name} {name}" + (f", {scoring.name}" if scoring.name else ""),
            score["score"],
            scoring.published.get(name, {}),
            report["signature"],
            tuple(score["confidence"]),
        )
        for name, score in report["scores"].items()
    ]


def tokenised(
    reference: str, *options: str, published: Mapping[str, float] | None = None, name: str = ""
) -> Scoring:
    """BLEU of tokenised text, that of Moses' multi-bleu.perl."""
    metric = ("bleu", "--tokenize", "none", *options)
    return Scoring(reference, metric, {"BLEU": published or {}}, name)


def detokenised(
    language: str,
    reference: str,
    *options: str,
    also: str = "",
    published: Mapping[str, float] | None = None,
    name: str = "detokenised",
) -> Scoring:
    """sacreBLEU of text that was detokenised, against a reference that never was tokenised, or
    is detokenised by the option ``also``."""
    metric = ("bleu", "--detokenize", language, *options)
    return Scoring(reference, metric, {"BLEU": published or {}}, name, (also,) if also else ())


@dataclass(frozen=True, kw_only=True)
class Translation(SequenceToSequence):
    task: ClassVar[str] = "translation"


@dataclass(frozen=True, kw_only=True)
class Summarization(SequenceToSequence):
    task: ClassVar[str] = "summarization"
