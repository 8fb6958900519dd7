"""The resolved settings of one run of a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .devices import Devices, precision_of


@dataclass(frozen=True)
class Settings:
    """One run.

    Attributes:
        mixer: the token mixer; with ``checkpoint``, that of its layers.
        output: the folder of the run; everything but the prepared data is written there.
        data: the prepared data, a folder that has ``bin``, or itself a binarised folder.
        source: a local copy of the corpus, or None for the download.
        smoke: three epochs of a shrunk model on a few hundred lines.
        checkpoint: the file to evaluate instead of training.
        published_format: whether ``checkpoint`` is of 2019 and has to be converted.
        extra: further arguments for fairseq-train, which win.
    """

    mixer: str
    seed: int
    output: Path
    data: Path
    devices: Devices
    source: Path | None = None
    smoke: bool = False
    checkpoint: Path | None = None
    published_format: bool = False
    extra: Sequence[str] = ()

    @property
    def binarised(self) -> Path:
        """The folder that fairseq reads."""
        if not (self.data / "bin").exists() and list(self.data.glob("dict*.txt")):
            return self.data
        return self.data / "bin"

    @property
    def precision(self) -> str:
        """The precision of training."""
        return precision_of((self.devices.precision, *self.extra))

    @property
    def release(self) -> Path:
        """Where a smoke test has its corpus."""
        return self.output / "release"

    @property
    def checkpoints(self) -> Path:
        return self.output / "checkpoints"
