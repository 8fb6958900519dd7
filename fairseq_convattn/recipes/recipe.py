"""The base of all recipes: data, training, and the paper's figures."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from ..architectures.presets import ARCHITECTURE_NAMES
from ..run_records import parse_options, sha256
from .command import (
    Command,
    CommandOptions,
    RecipeError,
    Stage,
    convattn,
    options,
    script,
    user_dir,
)
from .devices import FLOAT32, Batch
from .settings import Settings

STAGES = ("prepare", "train", "average", "generate", "score")

# the length of a smoke test in epochs, two of which are averaged; and a schedule to fit
_SMOKE_LENGTH = options("--max-epoch 3 --num-workers 0")
_SMOKE_SCHEDULE = options(
    "--warmup-updates 4 --lr-period-updates 8 --total-num-update 12 --save-interval-updates 4"
)
_SMOKE_AVERAGE = 2
# options with which fairseq does not write a checkpoint, or under another name
_NOT_WRITTEN = {
    "checkpoint_best.pt": ("--disable-validation",),
    "checkpoint_last.pt": ("--no-last-checkpoints",),
}
_NEVER_FOUND = ("--no-save", "--checkpoint-suffix")
# options that have it written, or validated for it, within epochs
_WITHIN_EPOCHS = ("--save-interval-updates", "--validate-interval-updates")
_WAY_OUT = "; leave the option out, or give the stages prepare and train alone"


@dataclass(frozen=True)
class Score:
    """One figure of a run.

    Attributes:
        confidence: its 95 % interval.
        baseline: the name of what was scored instead of the model's output; its name ends with it.
    """

    name: str
    score: float
    confidence: Sequence[float] | None
    signature: str
    baseline: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """One published result.

    Attributes:
        paper: the source of the figures, and where they were read.
        published: the paper's figures by mixer, by the name of the score.
        origin: where the hyper-parameters come from.
        reading: hyper-parameters that are our choice, because none are published; may be empty.
        unconfirmed: values quoted without access to their source; printed with every result.
        corpus: the name of the prepared data.
        prepare_script: the script that makes them, with its arguments (default:
            prepare_CORPUS.sh).
        release: the files of the release and their contents, for smoke tests, in the syntax of
            scripts/miniature_release.py.
        smoke_preparation: further arguments of the script in smoke tests.
        average: number of last checkpoints to average; None: use ``single``.
        needs: optional modules, by the stage that imports them.
        source: what the folder ``--source`` must contain; empty if the corpus can be downloaded.
        shape: the part of ``--arch`` that follows the mixer.
        mixer: the paper's own.
        training: options of fairseq-train, except devices and batch.
    """

    title: str
    paper: str
    origin: str
    corpus: str
    release: Mapping[str, str]
    shape: str
    training: CommandOptions
    batch: Batch
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    prepare_script: Sequence[str] = ()
    mixer: str = "dynamic"
    reading: str = ""
    unconfirmed: str = ""
    average: int | None = None
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: str = ""
    smoke_preparation: Sequence[str] = ()

    task: ClassVar[str]
    single: ClassVar[str] = "checkpoint_best.pt"
    shrunk: ClassVar[CommandOptions]
    smoke_batch: ClassVar[Batch]
    target_language: ClassVar[str | None] = None

    def with_batch(self, device_batch: int | None, extra: Sequence[str]) -> "Recipe":
        """The same recipe, whose updates are made of batches of another size, if one is given.

        Args:
            extra: further options of fairseq-train.

        Raises:
            RecipeError: batches of this size cannot make an update.
        """
        options = {**self.training, **parse_options(extra)}
        lengths = (
            options.get(f"--{name}") or "" for name in ("tokens-per-sample", "max-source-tokens")
        )
        longest = max([1, *(int(length) for length in lengths if length.isdecimal())])
        if device_batch:
            batch = replace(self.batch, longest=longest).of(device_batch)
        else:
            batch = self.batch.with_room(longest)
        return replace(self, batch=batch)

    def stages(self, settings: Settings) -> list[Stage]:
        """The stages of this run, in order."""
        evaluation = [self._average(settings), self.generate(settings), self.score(settings)]
        if settings.checkpoint:
            digests = {"--checkpoint with SHA-256": sha256(settings.checkpoint)}
            return [replace(stage, digests=digests) for stage in evaluation]
        asked = self.source and not settings.source and not settings.smoke
        places = (settings.data, settings.data.with_name(f"{settings.data.name}.preparing"))
        prepare = Stage(
            "prepare",
            self.prepare(settings),
            note=f"needs --source DIR, too, {self.source}" if asked else "",
            left=[place for place in places if place.exists()],
        )
        command = self.train(settings)
        train = Stage(
            "train",
            [command],
            launch=settings.devices.launch_lines(command.line(), settings.output),
            left=list(settings.checkpoints.glob("*.pt*")),
        )
        return [prepare, train, *evaluation]

    def architecture(self, settings: Settings) -> str:
        """fairseq-train's ``--arch``."""
        return ARCHITECTURE_NAMES[settings.mixer].format(self.shape)

    def used_batch(self, settings: Settings) -> Batch:
        return self.smoke_batch if settings.smoke else self.batch

    def prepare(self, settings: Settings) -> list[Command]:
        """The commands that prepare the data; a smoke test starts from a miniature release."""
        name, *words = self.prepare_script or (f"prepare_{self.corpus}.sh",)
        if not settings.smoke:
            return [prepare_command(settings, name, words, settings.data)]
        release = str(settings.release)
        source = [] if settings.source is None else ["--source", str(settings.source)]
        files = [f"{file}={content}" for file, content in self.release.items()]
        miniature = ["python", script("miniature_release.py"), release, *source, "--files", *files]
        words += self.smoke_preparation
        return [
            Command(miniature, writes=[settings.release]),
            prepare_command(settings, name, words, settings.data),
        ]

    def train(self, settings: Settings) -> Command:
        """fairseq-train, on the devices of this run."""
        training = dict(self.training)
        if settings.smoke:
            training |= {k: v for k, v in _SMOKE_SCHEDULE.items() if k in training}
            training |= {**_SMOKE_LENGTH, **self.shrunk}
        batch = self.used_batch(settings)
        return Command(
            ["fairseq-train", str(settings.binarised)],
            {
                "--user-dir": user_dir(),
                "--task": self.task,
                "--arch": self.architecture(settings),
                **training,
                batch.option: str(batch.size),
                "--required-batch-size-multiple": "1",
                # otherwise a resumed training would group its sentences differently
                "--update-epoch-batch-itr": "True",
                "--seed": str(settings.seed),
                "--save-dir": str(settings.checkpoints),
                "--log-format": "json",
                "--log-interval": "1" if settings.smoke else "100",
            },
            scaling=settings.devices.training(batch),
            further=settings.extra,
            not_passed=(FLOAT32,),
        )

    @abstractmethod
    def generate(self, settings: Settings) -> Stage:
        """The stage that generates what is scored."""

    @abstractmethod
    def score(self, settings: Settings) -> Stage:
        """The commands that write the scores."""

    @abstractmethod
    def scores(self, settings: Settings) -> list[Score]:
        """The scores that these commands wrote, the paper's own first."""

    def model(self, settings: Settings) -> Path:
        """The checkpoint that is evaluated."""
        if settings.checkpoint:
            converted = settings.output / "converted.pt"
            return converted if settings.published_format else settings.checkpoint
        return settings.checkpoints / ("average.pt" if self.average else self.single)

    def require_evaluable(self, settings: Settings) -> None:
        """Check that the training leaves what is evaluated: one checkpoint, or those that are
        averaged.

        Raises:
            RecipeError: the user's options leave less.
        """
        options = parse_options(self.train(settings).words())
        given = parse_options(settings.extra)
        needed = self._epochs_averaged(settings)
        if not needed:
            bad = [*_NEVER_FOUND, *_NOT_WRITTEN[self.single]]
            for name in (*bad, *self._beyond_the_last_epoch(options, given)):
                if name in given:
                    raise RecipeError(f"{name} after --: {self.single} is evaluated{_WAY_OUT}")
            return
        few = [name for name in ("--no-epoch-checkpoints", *_NEVER_FOUND) if name in options]
        if 0 < int(options.get("--keep-last-epochs") or 0) < needed:
            few.append("--keep-last-epochs")
        between = int(options.get("--save-interval") or 1)
        if 0 < int(options.get("--max-epoch") or 0) < needed * between:
            few += [name for name in ("--max-epoch", "--save-interval") if name in given]
        if few:
            reason = f"the mean of {needed} epochs is evaluated"
            raise RecipeError(f"{few[0]} after --: {reason}{_WAY_OUT}")

    def _beyond_the_last_epoch(
        self, options: Mapping[str, str | None], given: Mapping[str, str | None]
    ) -> list[str]:
        """The options by which no epoch of the training is saved, or validated if it must be."""
        if "--max-update" in given or any(name in options for name in _WITHIN_EPOCHS):
            return []
        names = ["--save-interval"]
        names += ["--validate-interval"] if self.single == "checkpoint_best.pt" else []
        last = int(options.get("--max-epoch") or 0)
        return [name for name in names if 0 < last < int(options.get(name) or 0)]

    def _epochs_averaged(self, settings: Settings) -> int | None:
        return self.average and (_SMOKE_AVERAGE if settings.smoke else self.average)

    def _average(self, settings: Settings) -> Stage:
        output = self.model(settings)
        if settings.published_format:
            words = ["convert", str(settings.checkpoint), str(output)]
        elif settings.checkpoint or not self.average:
            return Stage("average", note=f"{output} is used as it is")
        else:
            words = ["average", "--inputs", str(settings.checkpoints)]
            words += ["--last", str(self._epochs_averaged(settings)), "--output", str(output)]
        return Stage("average", [Command([*convattn(), *words], writes=[output])])


def prepare_command(
    settings: Settings, name: str, arguments: Sequence[str], output: Path
) -> Command:
    """The command of a prepare script, with ``--source`` or a smoke test's release if there is
    one."""
    source = settings.release if settings.smoke else settings.source
    asked = {} if source is None else {"--source": str(source)}
    asked["--output"] = str(output)
    if settings.smoke:
        asked["--sample"] = None
    return Command(["bash", script(name), *arguments], asked)
