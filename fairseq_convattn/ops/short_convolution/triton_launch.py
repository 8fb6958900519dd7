"""Short convolutions of low rank by the Triton kernels of ``triton_tiles``."""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import triton_tensors
from ..triton_tensors import DEVICES, DTYPES, cdiv, launch, of_width, power_of_2, precision
from .operators import register
from .triton_runs import VARYING
from .triton_tiles import MOST_HELD, backward_up, backward_x, backward_z, forward

MOST_TAPS = 16  # a program goes through all of them
MOST_STATIC_TAPS = 32  # by the kernels of triton_headwise
MOST_RANKS = 64  # a program holds all of them, the static kernel's too
CHANNELS = 64  # of a block
LEAST = 16  # a side of the matrices that are multiplied


class Blocks(NamedTuple):
    """``runs`` of ``run`` positions, warps, and how many rounds of a loop are loaded at once.
    ``programs`` share the gradient of up."""

    runs: int
    run: int
    warps: int
    stages: int = 1
    programs: int = 0


# By gradient; those of x are the outputs', too. FEW, of few ranks and taps in half precision, were
# the fastest on an H200 in bfloat16; MANY spill few registers or none.
FEW = {
    "x": Blocks(16, 2, 2, 3),
    "z": Blocks(16, 2, 2, 3),
    "up": Blocks(16, 4, 2, 2, 528),
}
MANY = {
    "x": Blocks(32, 1, 4, 3),
    "z": Blocks(32, 1, 4, 3),
    "up": Blocks(64, 1, 8, 3, 396),
}
SHARED_MEMORY = 64 * 1024  # bytes for rounds that are loaded before they are used


def _blocks(taps: int, ranks: int, dtype: torch.dtype) -> dict[str, Blocks]:
    return FEW if taps * ranks <= MOST_HELD.value and dtype != torch.float32 else MANY


def unfit(x: Tensor, z: Tensor, up: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if up.size(0) > MOST_RANKS:
        return f"takes at most {MOST_RANKS} ranks, one of them a static kernel, not {up.size(0)}"
    return triton_tensors.unfit(x, z, up) or too_many_taps(up.size(1))


def too_many_taps(taps: int, is_static: bool = False) -> str:
    if taps <= (MOST_STATIC_TAPS if is_static else MOST_TAPS):
        return ""
    limits = f"{MOST_TAPS} taps, static ones of at most {MOST_STATIC_TAPS}"
    return f"takes kernels of at most {limits}, not {taps}"


def _precision(x: Tensor) -> str:
    """tf32 has as many digits as float16."""
    exact = precision(x.device)
    return "tf32" if x.dtype == torch.float16 and exact == "tf32x3" else exact


class _Kernels:
    """Launches the kernels on given inputs, with ``z`` ``[time, batch, ranks]``.

    ``up``: ``[ranks, taps, channels]``, contiguous; both in the dtype of ``x``.
    """

    def __init__(self, x: Tensor, z: Tensor, up: Tensor, left: int, own: int):
        ranks, count, channels = up.shape
        self.x, self.z, self.up = x, z, up
        self.channel_blocks = cdiv(channels, CHANNELS)
        self.given = {
            "x": of_width(x, 0),
            "z": of_width(z, 0),
            "up": up,
            "batch": x.size(1),
            "time": z.size(0),
            "inputs": x.size(0),
            "channels": channels,
            "left": left,
            "OWN": own,
            "TAPS": count,
            "RANKS": ranks,
            "PADDED": max(power_of_2(ranks), LEAST),
            "CHANNELS": CHANNELS,
            "PRECISION": _precision(x),
        }
        self.blocks = _blocks(count, self.given["PADDED"], x.dtype)

    def _tiles(self, rows: int, blocks: Blocks) -> int:
        return self.x.size(1) * cdiv(rows, blocks.runs * self.run(blocks))

    def run(self, blocks: Blocks) -> int:
        return min(blocks.run, power_of_2(self.z.size(0)))

    def _launch(self, kernel, programs: int, blocks: Blocks, **arguments) -> None:
        """With those of all arguments that the kernel has."""
        given = {
            **self.given,
            **arguments,
            "RUNS": blocks.runs,
            "RUN": self.run(blocks),
            "STAGES": self._stages(blocks),
        }
        launch(kernel, programs, given, VARYING, self.x, num_warps=blocks.warps, num_stages=1)

    def _stages(self, blocks: Blocks) -> int:
        """Of a loop, whose rounds load rows of inputs and of gradients, and ``up`` or z."""
        taps = self.up.size(1)
        run = self.run(blocks)
        rows = (2 * run + taps - 1) * blocks.runs + taps * self.given["PADDED"]
        size = rows * self.given["CHANNELS"] * self.x.element_size()
        return 1 + min(blocks.stages - 1, SHARED_MEMORY // size)

    def forward(self) -> Tensor:
        y = self.x.new_empty(self.z.size(0), *self.x.shape[1:])
        if y.numel():
            blocks = self.blocks["x"]
            self._launch(forward, self._tiles(y.size(0), blocks), blocks, y=of_width(y, 0))
        return y

    def _groups(self) -> int:
        """How many programs share the tiles of a block of channels."""
        blocks = self.blocks["up"]
        tiles = self._tiles(self.z.size(0), blocks)
        return max(1, min(tiles, blocks.programs // self.channel_blocks))

    def x_grad(self, grad: Tensor) -> Tensor:
        """The gradient of x."""
        x_grad, blocks = self.x.new_empty(self.x.shape), self.blocks["x"]
        gradients = {"grad": of_width(grad, 0), "x_grad": of_width(x_grad, 0)}
        self._launch(backward_x, self._tiles(x_grad.size(0), blocks), blocks, **gradients)
        return x_grad

    def up_grad(self, grad: Tensor) -> Tensor:
        """The gradient of ``up`` in float32."""
        groups = self._groups()
        sums = self.up.new_empty(groups, *self.up.shape, dtype=torch.float32)
        gradients = {"grad": of_width(grad, 0), "up_grad": sums}
        self._launch(backward_up, groups * self.channel_blocks, self.blocks["up"], **gradients)
        return sums.sum(0)

    def z_grad(self, grad: Tensor, dtype: torch.dtype) -> Tensor:
        """The gradient of z."""
        z_grad, blocks = self.z.new_empty(self.z.shape, dtype=dtype), self.blocks["z"]
        gradients = {"grad": of_width(grad, 0), "z_grad": of_width(z_grad, 0)}
        self._launch(backward_z, self._tiles(self.z.size(0), blocks), blocks, **gradients)
        return z_grad


def _as(x: Tensor, up: Tensor) -> Tensor:
    return up.to(x.dtype).contiguous()


def _forward(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    return _Kernels(x, z.to(x.dtype), _as(x, up), left, own).forward()


def _backward(
    grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    if not grad.numel():
        return nothing((x, z, up), wanted)
    kernels = _Kernels(x, z.to(x.dtype), _as(x, up), left, own)
    x_grad = kernels.x_grad(grad) if wanted[0] else None
    z_grad = kernels.z_grad(grad, z.dtype) if wanted[1] else None
    up_grad = kernels.up_grad(grad).to(up.dtype) if wanted[2] else None
    return x_grad, z_grad, up_grad


def nothing(inputs: tuple[Tensor, ...], wanted: list[bool]) -> tuple[Tensor | None, ...]:
    return tuple(
        x.new_zeros(x.shape) if want else None for x, want in zip(inputs, wanted, strict=True)
    )


convolve = register("short_convolve_triton", _forward, _backward, DTYPES, DEVICES)
