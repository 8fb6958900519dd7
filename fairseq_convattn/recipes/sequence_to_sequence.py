"""Recipes of encoder-decoders: translation and summarization."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from .command import Command, Options, Stage, arguments
from .devices import Batch
from .recipe import Recipe, Score
from .settings import Settings, script, user_dir

_SHRUNK = {
    "--encoder-embed-dim": "32",
    "--encoder-ffn-embed-dim": "64",
    "--encoder-attention-heads": "4",
    "--decoder-attention-heads": "4",
    "--encoder-layers": "2",
    "--decoder-layers": "2",
}
_SMOKE_DECODING = {"--batch-size": "32", "--max-len-b": "20", "--num-workers": "0"}
_SMOKE_LEAST = {"--min-len": "1"}


@dataclass(frozen=True)
class TestSet:
    """What is generated and how it is scored.

    Attributes:
        name: as papers call it.
        subset: fairseq's name of it.
        reference: the file of the prepared data's ``text`` that it is compared with.
        metric: of scripts/score.py, with options.
        published: the paper's figures by mixer, for each score that the metric gives; the
            first is the one that is quoted.
    """

    name: str
    reference: str
    metric: Sequence[str]
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
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
        return Stage("score", [self._score(settings, test) for test in self.tests])

    def scores(self, settings: Settings) -> list[Score]:
        found = []
        for test in self.tests:
            report = json.loads(_scores(settings, test).read_text(encoding="utf-8"))
            for name, score in report["scores"].items():
                low, high = score["confidence"]
                found.append(
                    Score(
                        f"{test.name} {name}",
                        score["score"],
                        test.published.get(name, {}),
                        report["signature"],
                        (low, high),
                    )
                )
        return found

    def _generate(self, settings: Settings, test: TestSet) -> Command:
        decoding = dict(self.decoding)
        if settings.smoke:
            decoding |= {k: v for k, v in _SMOKE_LEAST.items() if k in decoding}
            decoding |= _SMOKE_DECODING
        return Command(
            [
                *("fairseq-generate", str(settings.binarised), "--user-dir", user_dir()),
                *("--task", self.task, "--gen-subset", test.subset),
                *("--path", str(self.model(settings)), *arguments(decoding)),
                *("--required-batch-size-multiple", "1"),
            ],
            stdout=_generated(settings, test),
            scaling=settings.devices.one(),
        )

    def _score(self, settings: Settings, test: TestSet) -> Command:
        reference = settings.data / "text" / test.reference
        # a binarised test set alone has its targets, which fairseq-generate prints
        known = settings.binarised != settings.data
        return Command(
            [
                *("python", script("score.py"), "--metric", *test.metric),
                *(("--reference", str(reference)) if known else ()),
                *("--hypothesis", str(_generated(settings, test)), "--format", "json"),
            ],
            stdout=_scores(settings, test),
        )


def _generated(settings: Settings, test: TestSet) -> Path:
    return settings.output / f"generated.{test.subset}.txt"


def _scores(settings: Settings, test: TestSet) -> Path:
    return settings.output / f"scores.{test.subset}.json"


@dataclass(frozen=True, kw_only=True)
class Translation(SequenceToSequence):
    task: ClassVar[str] = "translation"


@dataclass(frozen=True, kw_only=True)
class Summarization(SequenceToSequence):
    task: ClassVar[str] = "summarization"
