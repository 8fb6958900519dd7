"""Recipes of language models, scored by their perplexity."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from .command import Command, Options, Stage, arguments
from .devices import Batch
from .errors import RecipeError
from .recipe import Recipe, Score
from .settings import Settings, user_dir

_SHRUNK = {
    "--decoder-embed-dim": "32",
    "--decoder-ffn-embed-dim": "64",
    "--decoder-attention-heads": "4",
    "--decoder-layers": "2",
    "--adaptive-softmax-cutoff": "10,20",
    "--tokens-per-sample": "128",
}
_SMOKE_EVALUATION = {
    "--tokens-per-sample": "128",
    "--max-tokens": "1024",
    "--context-window": "64",
    "--num-workers": "0",
}


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Recipe):
    """A language model with adaptive inputs and outputs.

    Attributes:
        evaluation: fairseq-eval-lm's options.
        published: test perplexities by mixer.
    """

    evaluation: Options
    published: Mapping[str, float] = field(default_factory=dict)

    task: ClassVar[str] = "language_modeling"
    shrunk: ClassVar[Options] = _SHRUNK
    smoke_batch: ClassVar[Batch] = Batch(1024, 1, 1)

    def generate(self, settings: Settings) -> Stage:
        return Stage("generate", note="a language model is scored by its perplexity")

    def score(self, settings: Settings) -> Stage:
        return Stage(
            "score",
            [
                Command(
                    [
                        *("fairseq-eval-lm", str(settings.binarised), "--user-dir", user_dir()),
                        *("--path", str(self.model(settings)), "--gen-subset", "test"),
                        *arguments(self._evaluation(settings)),
                    ],
                    stdout=_output(settings),
                    logs_too=True,  # the figures among them
                    scaling=settings.devices.one(),
                )
            ],
        )

    def scores(self, settings: Settings) -> list[Score]:
        text = _output(settings).read_text(encoding="utf-8")
        found = re.search(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", text)
        tokens = re.search(r"Evaluated ([\d,]+) tokens", text)
        if not found or not tokens:
            done = settings.output / "stages" / "score.json"
            raise RecipeError(
                f"{_output(settings)}, the log of fairseq-eval-lm, has no perplexity; to do the "
                f"stage score again remove {done}"
            )
        signature = f"fairseq-eval-lm|tokens:{tokens[1].replace(',', '')}|" + "|".join(
            f"{name.removeprefix('--')}:{value}"
            for name, value in self._evaluation(settings).items()
        )
        return [Score("test perplexity", 2 ** float(found[1]), self.published, signature)]

    def _evaluation(self, settings: Settings) -> Options:
        shrunk = _SMOKE_EVALUATION if settings.smoke else {}
        return {name: shrunk.get(name, value) for name, value in self.evaluation.items()}


def _output(settings: Settings) -> Path:
    return settings.output / "scores.test.txt"
