"""Devices and precision of a training, and the resulting size of an update."""

import platform
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from .command import RecipeError

ENDED = "training-ended"
PORT = 29_500
RESTARTS = 3
FLOAT32 = "--fp32"  # our own name; fairseq-train has no option for it
PRECISIONS = {
    FLOAT32: "float32",
    **dict.fromkeys(("--fp16", "--memory-efficient-fp16", "--amp"), "float16"),
    **dict.fromkeys(("--bf16", "--memory-efficient-bf16"), "bfloat16"),
}
# CPU flags; such processors train twice as fast in bfloat16
_BFLOAT16 = {"avx512_bf16", "amx_bf16"}


@dataclass(frozen=True)
class Batch:
    """The batch of one update.

    Attributes:
        size: tokens or sentences that one device takes at a time.
        workers: number of devices, the paper's unless ``is_papers`` is False.
        update_freq: batches per device and update.
        is_papers: whether it is the paper's own division of the update.
        longest: tokens that a sample may have, where options cut them.
    """

    size: int
    workers: int
    update_freq: int
    unit: Literal["tokens", "sentences"] = "tokens"
    is_papers: bool = True
    longest: int = 1

    @property
    def per_update(self) -> int:
        return self.size * self.workers * self.update_freq

    @property
    def option(self) -> str:
        return {"tokens": "--max-tokens", "sentences": "--batch-size"}[self.unit]

    def of(self, size: int) -> "Batch":
        """The same update in batches of another size.

        Raises:
            RecipeError: the update is no multiple of it, or a sample is longer than it.
        """
        if size not in (fitting := self._sizes(self.per_update)):
            reason = f"does not divide an update of {self.per_update:,} {self.unit} evenly"
            if size < self.longest and self.unit == "tokens":
                reason = f"samples have up to {self.longest:,} tokens"
            way_out = f"{_neighbours(size, fitting)} would fit" if fitting else "nothing would fit"
            raise RecipeError(f"--device-batch {size}: {reason}; {way_out}")
        update_freq = self.per_update // size
        return replace(self, size=size, workers=1, update_freq=update_freq, is_papers=False)

    def with_room(self, longest: int) -> "Batch":
        """The same, of samples of up to ``longest`` tokens.

        Raises:
            RecipeError: a device takes fewer at a time.
        """
        batch = replace(self, longest=longest)
        if self.unit == "tokens" and self.size < longest:
            way_out = " or ".join(f"--device-batch {n}" for n in batch._sizes(self.per_update)[:1])
            raise RecipeError(
                f"samples have up to {longest:,} tokens, a device takes {self.size:,} at a time: "
                f"give {way_out or 'shorter ones'}"
            )
        return batch

    def _sizes(self, share: int) -> list[int]:
        """The sizes of batches that make up a device's share of an update."""
        least = self.longest if self.unit == "tokens" else 1
        return _divisors(share, least)

    def divides(self, workers: int) -> bool:
        """Whether ``workers`` devices can share an update evenly."""
        return self.workers * self.update_freq % workers == 0

    def update_freq_for(self, workers: int) -> int:
        """The ``--update-freq`` that gives ``workers`` devices the paper's batch.

        Raises:
            RecipeError: no whole number does.
        """
        steps = self.workers * self.update_freq
        if not self.divides(workers):
            fitting = f"--gpus times --nodes may be {_neighbours(workers, _divisors(steps))}"
            sizes = (
                self._sizes(self.per_update // workers) if self.per_update % workers == 0 else ()
            )
            if sizes:
                size = next((n for n in sizes if n >= self.size), sizes[-1])
                fitting += f", or give --device-batch {size}"
            raise RecipeError(
                f"{workers} devices of {self.size:,} {self.unit} cannot share an update of "
                f"{self.per_update:,} {self.unit} evenly; {fitting}"
            )
        return steps // workers


def _divisors(number: int, least: int = 1) -> list[int]:
    return [n for n in range(least, number + 1) if number % n == 0]


def _neighbours(number: int, fitting: Sequence[int]) -> str:
    """The nearest fitting numbers below and above one that does not fit."""
    below = [n for n in fitting if n < number][-1:]
    return " or ".join(map(str, below + [n for n in fitting if n > number][:1]))


@dataclass(frozen=True)
class Devices:
    """The devices of a run.

    Attributes:
        gpus: number on each of the ``nodes`` machines; 0: the CPU.
        precision: an option of fairseq-train, or None for float32 and for a user's own option.
    """

    gpus: int
    nodes: int = 1
    precision: Literal["--fp16", "--bf16"] | None = None
    fsdp: bool = False

    @property
    def workers(self) -> int:
        return max(self.gpus, 1) * self.nodes

    def training(self, batch: Batch) -> list[str]:
        """fairseq-train's arguments for these devices and a batch."""
        return [
            *("--distributed-world-size", str(self.workers)),
            *("--update-freq", str(batch.update_freq_for(self.workers))),
            *("--ddp-backend", "fully_sharded" if self.fsdp else "legacy_ddp"),
            *([self.precision] if self.precision else []),
            *self.one(),
        ]

    def one(self) -> list[str]:
        """The arguments of a command that runs on a single device."""
        return [] if self.gpus else ["--cpu"]

    def notes(self) -> list[str]:
        """Notes on how these devices differ from this machine's."""
        if not self.gpus:
            float32 = "--bf16: this CPU supports it; -- --fp32 trains in float32"
            return ["--gpus N prints the commands for GPUs", *([float32] if self.precision else ())]
        if self.precision != "--fp16" or self.fsdp or torch.cuda.device_count():
            return []
        return ["--fp16: no GPU here to check; add -- --bf16 if yours support it"]

    def explain(self, batch: Batch, smoke: bool) -> str:
        """The size of an update as a readable product."""
        whose = "a smoke test's" if smoke else "the recipe's"
        kind = "GPU" if self.gpus else "CPU"
        here = f"{self.workers} {kind}s" if self.workers > 1 else f"1 {kind}"
        here = here if self.gpus or self.nodes > 1 else "the CPU"
        paper = f" ({whose} {batch.workers} x {batch.size:,} x {batch.update_freq})"
        return (
            f"{batch.per_update:,} {batch.unit} an update, on {here}: {self.workers} x "
            f"{batch.size:,} x update-freq {batch.update_freq_for(self.workers)}"
            f"{paper if batch.is_papers else ''}"
        )

    def launch_lines(self, command: str, output: Path) -> list[str]:
        """Shell lines that start a training on several machines; empty for one machine.

        The log goes to the folder ``output``, as does the file ``ENDED`` after success.
        """
        if self.nodes == 1:
            return []
        logs, ended = shlex.quote(f"{output}/logs"), f"touch {shlex.quote(f'{output}/{ENDED}')}"
        start = f"mkdir -p {logs} && set -o pipefail;"
        logged = f"2>&1 | tee -a {logs}/train.log"
        arguments = command.partition(" ")[2]  # of fairseq-train
        torchrun = [
            "# torchrun, on every machine with its own number from 0 on in NODE_RANK and the name "
            "of the first one in MASTER_ADDR:",
            f"{start} torchrun --nnodes {self.nodes} --nproc-per-node "
            f'{max(self.gpus, 1)} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" '
            f"--master-port {PORT} --max-restarts {RESTARTS} -m fairseq_convattn.launch "
            f'{arguments} {logged} && {{ [ "$NODE_RANK" != 0 ] || {ended}; }}',
        ]
        if not self.gpus:  # fairseq asks SLURM for GPUs
            return torchrun
        return [
            *torchrun,
            "# or SLURM, from the machine that submits:",
            f"# {start} srun --nodes {self.nodes} --ntasks-per-node {self.gpus} "
            f"--gpus-per-node {self.gpus} {command} --distributed-port {PORT} "
            f"{logged} && {ended}",
        ]


def choose_devices(gpus: int | None, nodes: int, fsdp: bool, batch: Batch) -> Devices:
    """The chosen devices and their precision.

    That is bfloat16 if this machine's devices support it, else float16, which the papers used, or
    float32 on a CPU.

    Args:
        gpus: number on each machine; None: as many of this machine's as can share an update evenly,
            or its CPU.

    Raises:
        RecipeError: the devices cannot be used so.
    """
    visible = torch.cuda.device_count()
    if gpus is None:
        gpus = next((n for n in range(visible, 0, -1) if batch.divides(n * nodes)), visible)
    if gpus == 0 and fsdp:
        raise RecipeError("--fsdp shards a model over GPUs: add --gpus N")
    precision = "--bf16"
    if not gpus and _BFLOAT16.isdisjoint(processor().get("flags", "").split()):
        precision = None
    elif gpus and (  # fairseq's sharding supports only float16
        fsdp or not visible or not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        precision = "--fp16"
    return Devices(gpus, nodes, precision, fsdp)


def precision_of(words: Iterable[str | None]) -> str:
    """The precision of a training by the words of its command."""
    return next((PRECISIONS[word] for word in words if word in PRECISIONS), PRECISIONS[FLOAT32])


def processor_name() -> str:
    """The CPU's model, or its architecture where the system does not name a model."""
    return processor().get("model name") or platform.processor() or platform.machine()


def processor(information: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The fields of /proc/cpuinfo for one processor of this machine; empty without that file."""
    try:
        lines = information.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}
