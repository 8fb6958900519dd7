"""Recipes of masked language models, scored by GLUE after fine-tuning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ..glue.tasks import TASKS
from ..run_records import read_json
from .command import Command, CommandOptions, Stage, arguments, convattn, options
from .devices import Batch
from .recipe import Recipe, Score, prepare_command
from .settings import Settings

_SHRUNK = options(
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 "
    "--encoder-layers 2 --tokens-per-sample 64"
)
_SMOKE_TASKS, _SMOKE_FINE_TUNING = ("RTE",), {"--seeds": "1", "--epochs": "1"}


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModel(Recipe):
    """A masked language model. Its stage ``generate`` fine-tunes; the scores are GLUE's on the dev
    sets.

    Attributes:
        fine_tuning: options of ``convattn glue finetune`` for all tasks.
        of_task: further options for single tasks.
        from_mnli: tasks whose fine-tuning starts from MNLI's best seed.
        fine_tuning_further: fairseq-train's options of fine-tuning that differ from that command's.
    """

    fine_tuning: CommandOptions
    of_task: Mapping[str, CommandOptions]
    from_mnli: Sequence[str] = ()
    fine_tuning_further: CommandOptions = field(default_factory=dict)

    task: ClassVar[str] = "masked_lm"
    single: ClassVar[str] = "checkpoint_last.pt"
    shrunk: ClassVar[CommandOptions] = _SHRUNK
    smoke_batch: ClassVar[Batch] = Batch(16, 1, 1, "sentences")

    def prepare(self, settings: Settings) -> list[Command]:
        data, glue = settings.data, _glue_data(settings)
        asked = {
            "--sentencepiece": str(data / "bpe" / "bpe.model"),
            "--dictionary": str(data / "bin" / "dict.txt"),
            "--tasks": ",".join(_tasks(settings)),
        }
        if settings.source:
            asked["--download-rest"] = None
        further = prepare_command(settings, "prepare_glue.sh", arguments(asked), glue)
        return [*super().prepare(settings), further]

    def generate(self, settings: Settings) -> Stage:
        return Stage(
            "generate", [self._fine_tune(settings, task) for task in self._in_order(settings)]
        )

    def _in_order(self, settings: Settings) -> Sequence[str]:
        """The tasks, those that start from MNLI's model last."""
        return sorted(_tasks(settings), key=self.from_mnli.__contains__)

    def _fine_tune(self, settings: Settings, task: str) -> Command:
        further = arguments(self.fine_tuning_further)
        after_mnli = task in self.from_mnli and "MNLI" in _tasks(settings)
        start = _glue(settings, "MNLI").parent if after_mnli else self.model(settings)
        return Command(
            [*convattn(), "glue", "finetune", task, str(start)],
            {
                "--data": str(_glue_data(settings) / "bin"),
                "--output": str(_glue(settings, task).parent),
                **self.fine_tuning,
                **self.of_task.get(task, {}),
                **(_SMOKE_FINE_TUNING if settings.smoke else {}),
            },
            further=("--", *further) if further else (),
        )

    def score(self, settings: Settings) -> Stage:
        return Stage("score", note="the scores are those of fine-tuning")

    def scores(self, settings: Settings) -> list[Score]:
        found = []
        for task in _tasks(settings):
            report = read_json(_glue(settings, task))
            seeds = ",".join(str(seed["seed"]) for seed in report["seeds"])
            signature = f"GLUE|dev|best epoch|median of seeds {seeds}"
            found += [
                Score(f"{task} {metric}", figures["median"], None, signature)
                for metric, figures in report["summary"].items()
            ]
        return found


def _tasks(settings: Settings) -> Sequence[str]:
    return _SMOKE_TASKS if settings.smoke else tuple(TASKS)


def _glue_data(settings: Settings) -> Path:
    return settings.data.with_name(f"{settings.data.name}_glue")


def _glue(settings: Settings, task: str) -> Path:
    return settings.output / "glue" / task / "results.json"
