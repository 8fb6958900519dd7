"""Static and headwise short convolutions by the Triton kernels of ``triton_runs``."""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import triton_tensors
from ..triton_tensors import (
    ASSEMBLY,
    DEVICES,
    DTYPES,
    Strided,
    cdiv,
    launch,
    of_width,
    power_of_2,
    strided,
)
from .operators import register
from .triton_launch import nothing, too_many_taps
from .triton_runs import VARYING, backward, forward

MOST_HEAD_DIM = 128  # a program has all channels of a head
CHANNELS = 64  # of a program without heads
FEW_TAPS = 4


class Blocks(NamedTuple):
    """Runs of ``run`` positions, whose rows have so many ``elements`` at each, and warps.
    ``programs`` share the gradient of the static kernel, with so many rounds of their loop loaded
    at once and so many registers at most."""

    run: int
    elements: int
    warps: int
    programs: int = 0
    stages: int = 1
    registers: int | None = None


# The fastest on an H200 of those that spill no registers. MANY, of many taps of heads or of float32
# backward, was not measured, nor LONG, of many static taps, which take the fewest instructions of
# those that spill few registers or none.
FORWARD = Blocks(4, 256, 1)
STATIC = Blocks(8, 256, 1, 528, 3)
HEADWISE = Blocks(3, 256, 1, 1584, 1, 168)
MANY = Blocks(2, 256, 2, 1056)
LONG_FORWARD = Blocks(16, 128, 2)
LONG_BACKWARD = Blocks(8, 128, 2, 1056)


def _forward_blocks(taps: int, is_static: bool) -> Blocks:
    if taps <= FEW_TAPS:
        return FORWARD
    return LONG_FORWARD if is_static else MANY


def _backward_blocks(taps: int, is_static: bool, dtype: torch.dtype) -> Blocks:
    if taps > FEW_TAPS:
        return LONG_BACKWARD if is_static else MANY
    if dtype == torch.float32:
        return MANY
    return STATIC if is_static else HEADWISE


def unfit(x: Tensor, taps: Tensor, static: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if x.size(2) > (taps.size(2) or x.size(2)) * MOST_HEAD_DIM:
        return f"takes heads of at most {MOST_HEAD_DIM} channels"
    too_many = too_many_taps(taps.size(3), is_static=not taps.size(2))
    return triton_tensors.unfit(x, taps, static) or too_many


def _of_heads(taps: Tensor | None) -> Strided | None:
    """``[time, batch, heads, taps]``, if there are heads."""
    return None if taps is None or not taps.size(2) else strided(taps)


class _Kernels:
    """Launches the kernels on given inputs. ``taps`` may be of no heads."""

    def __init__(self, x: Tensor, taps: Tensor, static: Tensor, left: int, own: int):
        time, batch, heads, count = taps.shape
        self.width = max(1, x.size(2) // heads) if heads else CHANNELS
        self.x, self.time, self.blocks = x, time, cdiv(x.size(2), self.width)
        self.kind = count, heads == 0
        self.given = {
            "x": of_width(x, self.width),
            "taps": _of_heads(taps),
            "static": static.t().to(x.dtype).contiguous(),
            "batch": batch,
            "time": time,
            "inputs": x.size(0),
            "channels": x.size(2),
            "left": left,
            "OWN": own,
            "TAPS": count,
            "WIDTH": self.width,
            "CHANNELS": power_of_2(self.width),
        }

    def _tiles(self, rows: int, blocks: Blocks) -> int:
        return self.x.size(1) * cdiv(rows, self.runs(blocks) * self.run(blocks))

    def runs(self, blocks: Blocks) -> int:
        return blocks.elements // self.given["CHANNELS"]

    def run(self, blocks: Blocks) -> int:
        return min(blocks.run, power_of_2(self.time))

    def _launch(self, kernel, programs: int, blocks: Blocks, **arguments) -> None:
        given = {
            **self.given,
            **arguments,
            "RUNS": self.runs(blocks),
            "RUN": self.run(blocks),
            "STAGES": blocks.stages,
        }
        options = {"num_warps": blocks.warps, "num_stages": 1}
        if blocks.registers and ASSEMBLY.value:
            options["maxnreg"] = blocks.registers
        launch(kernel, programs * self.blocks, given, VARYING, self.x, **options)

    def forward(self) -> Tensor:
        y = self.x.new_empty(self.time, *self.x.shape[1:])
        if y.numel():
            blocks = _forward_blocks(*self.kind)
            self._launch(forward, self._tiles(self.time, blocks), blocks, y=of_width(y, self.width))
        return y

    def backward(
        self, grad: Tensor, x_grad: Tensor | None, taps_grad: Tensor | None, of_static: bool
    ) -> Tensor | None:
        """Fill the gradients of x and of taps; returns that of ``static``, ``[taps, channels]``
        in float32, if it is wanted."""
        blocks, sums = _backward_blocks(*self.kind, self.x.dtype), None
        groups = self._tiles(self.x.size(0), blocks)
        if of_static:
            groups = max(1, min(groups, blocks.programs // self.blocks))
            static = self.given["static"]
            sums = static.new_empty(groups, *static.shape, dtype=torch.float32)
        gradients = {
            "grad": of_width(grad, self.width),
            "x_grad": of_width(x_grad, self.width),
            "taps_grad": _of_heads(taps_grad),
            "static_grad": sums,
        }
        self._launch(backward, groups, blocks, **gradients)
        return None if sums is None else sums.sum(0)


def _forward(x: Tensor, taps: Tensor, static: Tensor, left: int, own: int) -> Tensor:
    return _Kernels(x, taps, static, left, own).forward()


def _backward(
    grad: Tensor, x: Tensor, taps: Tensor, static: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    if not grad.numel():
        return nothing((x, taps, static), wanted)
    x_grad = x.new_empty(x.shape) if wanted[0] else None
    taps_grad = taps.new_zeros(taps.shape) if wanted[1] else None
    kernels = _Kernels(x, taps, static, left, own)
    static_grad = kernels.backward(grad, x_grad, taps_grad, wanted[2])
    if static_grad is not None:
        static_grad = static_grad.t().to(static.dtype).contiguous()
    return x_grad, taps_grad, static_grad


convolve = register(
    "short_convolve_headwise_triton", _forward, _backward, DTYPES, DEVICES, headwise=True
)
