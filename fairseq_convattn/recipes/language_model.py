"""Recipes of language models, scored by their perplexity."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..run_records import parse_options
from .command import Command, CommandOptions, RecipeError, Stage, options, user_dir
from .devices import Batch
from .recipe import Recipe, Score
from .settings import Settings

_SHRUNK = options(
    "--decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-attention-heads 4 "
    "--decoder-layers 2 --tokens-per-sample 128"
)
_SMOKE_EVALUATION = options("--tokens-per-sample 128 --max-tokens 1024 --num-workers 0")
_SMOKE_CONTEXT = 64


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Recipe):
    """A language model.

    Attributes:
        evaluations: options of fairseq-eval-lm by the score's name, which is empty for the paper's
            own score.
    """

    evaluations: Mapping[str, CommandOptions]

    task: ClassVar[str] = "language_modeling"
    smoke_batch: ClassVar[Batch] = Batch(1024, 1, 1)

    @property
    def shrunk(self) -> CommandOptions:
        adaptive = self.training["--criterion"] == "adaptive_loss"
        return _SHRUNK | ({"--adaptive-softmax-cutoff": "10,20"} if adaptive else {})

    def require_evaluable(self, settings: Settings) -> None:
        """Check, too, that the model takes samples as long as those of the evaluation, which are
        the recipe's own.

        Raises:
            RecipeError: the user's options limit it to shorter ones, or leave no checkpoint.
        """
        super().require_evaluable(settings)
        needed = int(self.train(settings).options["--tokens-per-sample"])
        given = parse_options(settings.extra)
        names = ("--max-target-positions", "--tokens-per-sample")  # the first that is given counts
        name = next((name for name in names if given.get(name)), None)
        if name and int(given[name]) < needed:
            raise RecipeError(
                f"{name} {given[name]} after --: the evaluation has samples of up to {needed:,} "
                f"tokens; add --max-target-positions {needed}"
            )

    def generate(self, settings: Settings) -> Stage:
        return Stage("generate", note="a language model is scored by its perplexity")

    def score(self, settings: Settings) -> Stage:
        return Stage("score", [self._score(settings, name) for name in self.evaluations])

    def scores(self, settings: Settings) -> list[Score]:
        return [self._read_score(settings, name) for name in self.evaluations]

    def _score(self, settings: Settings, name: str) -> Command:
        return Command(
            ["fairseq-eval-lm", str(settings.binarised)],
            {
                "--user-dir": user_dir(),
                "--path": str(self.model(settings)),
                "--gen-subset": "test",
                **self._evaluation(settings, name),
            },
            stdout=_output(settings, name),
            logs_too=True,  # the figures among them
            scaling=settings.devices.one(),
        )

    def _read_score(self, settings: Settings, name: str) -> Score:
        output = _output(settings, name)
        text = output.read_text(encoding="utf-8")
        found = re.search(r"Loss \(base 2\): (\S+), Perplexity: (\S+)", text)
        tokens = re.search(r"Evaluated ([\d,]+) tokens", text)
        if not found or not tokens:
            raise RecipeError(
                f"{output}, the log of fairseq-eval-lm, has no perplexity; to do the stage score "
                f"again remove {settings.output}/stages/score.json"
            )
        if not math.isfinite(perplexity := float(found[2])):
            raise RecipeError(f"{output}: the loss is {found[1]}; train anew with a lower --lr")
        evaluation = self._evaluation(settings, name).items()
        how = "|".join(f"{option.removeprefix('--')}:{value}" for option, value in evaluation)
        signature = f"fairseq-eval-lm|tokens:{tokens[1].replace(',', '')}|{how}"
        title = f"test perplexity, {name}" if name else "test perplexity"
        return Score(title, perplexity, None, signature)

    def _evaluation(self, settings: Settings, name: str) -> CommandOptions:
        found = dict(self.evaluations[name])
        if not settings.smoke:
            return found
        if context := found.get("--context-window"):
            found["--context-window"] = str(min(int(context), _SMOKE_CONTEXT))
        return {option: _SMOKE_EVALUATION.get(option, value) for option, value in found.items()}


def _output(settings: Settings, name: str) -> Path:
    suffix = f".{name.replace(' ', '_')}" if name else ""
    return settings.output / f"scores.test{suffix}.txt"
