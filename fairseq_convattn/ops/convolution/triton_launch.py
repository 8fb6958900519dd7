"""Both convolutions by the Triton kernels of ``triton_runs`` and ``triton_tiles``, as operators of
PyTorch."""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import triton_tensors
from ..triton_tensors import (
    DEVICES,
    DTYPES,
    cdiv,
    everywhere,
    launch,
    of_width,
    power_of_2,
    precision,
    strided,
)
from .operators import outputs, register
from .triton_runs import backward_by_taps, forward_by_taps
from .triton_tiles import VARYING, backward_by_bands, forward_by_bands

MOST_TAPS = 64
RUN = 4  # positions
LEAST = 16  # a side of the matrices that are multiplied


class Blocks(NamedTuple):
    """What a program computes at once, in powers of two.

    ``rows`` positions of ``heads`` heads and ``channels`` channels of each; in products one head,
    and ``LEAST`` or more of all else. For taps one by one, runs of ``run`` positions.
    """

    rows: int
    heads: int
    channels: int
    warps: int
    run: int = 1


def unfit(x: Tensor, taps: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if taps.size(-1) > MOST_TAPS:
        return f"takes kernels of at most {MOST_TAPS} taps, not {taps.size(-1)}"
    return triton_tensors.unfit(x, taps)


def _multiplies_bands(head_dim: int, kernel_size: int, dtype: torch.dtype, softmax: bool) -> bool:
    """Whether products are faster than taps one by one: as measured on an H200 in bfloat16; of
    float32 or narrow heads, by the number of instructions."""
    if head_dim < LEAST or dtype == torch.float32:
        return kernel_size > 7
    return kernel_size > (3 if softmax else 4)


def _keeps_sums(x: Tensor, taps: Tensor) -> bool:
    """Few taps are normalised anew, backward."""
    head_dim = x.size(2) // max(1, taps.size(-2))
    return _multiplies_bands(head_dim, taps.size(-1), x.dtype, True)


def _forward_blocks(time: int, head_dim: int, kernel_size: int, banded: bool) -> Blocks:
    if banded:
        rows = min(_padded(time), LEAST if kernel_size <= LEAST else 64)
        return Blocks(rows, 1, _channels(head_dim), rows // LEAST)
    return _blocks_of_taps(min(power_of_2(time), 16), head_dim)


def _backward_blocks(
    time: int, head_dim: int, kernel_size: int, banded: bool, dtype: torch.dtype
) -> Blocks:
    if banded:  # as many rows as padded taps
        rows = _padded(kernel_size)
        of_one_warp = LEAST if dtype == torch.float32 else 32
        return Blocks(rows, 1, _channels(head_dim), max(1, rows // of_one_warp))
    return _blocks_of_taps(min(power_of_2(time), 16), head_dim)


def _blocks_of_taps(rows: int, head_dim: int) -> Blocks:
    """Blocks for taps one by one: several narrow heads."""
    channels = min(power_of_2(head_dim), 64)
    heads = max(1, LEAST // channels)
    warps = max(1, rows * heads * channels // 1024)
    return Blocks(rows, heads, channels, warps, min(RUN, rows))


def _padded(size: int) -> int:
    """A side of matrices that are multiplied."""
    return max(power_of_2(size), LEAST)


def _channels(head_dim: int) -> int:
    return min(_padded(head_dim), 64)


class _Kernels:
    """Launches the kernels on given inputs. ``lse`` is None without a softmax."""

    def __init__(
        self, x: Tensor, taps: Tensor, kept: Tensor | None, lse: Tensor | None,
        time: int, left: int, keep: float,
    ):  # fmt: skip
        heads, kernel_size = taps.shape[-2:]
        self.x, self.time, self.heads = x, time, heads
        self.shape = x.size(2) // heads, kernel_size
        self.banded = _multiplies_bands(*self.shape, x.dtype, lse is not None)
        self.inputs = {
            "x": of_width(x, self.shape[0]),
            "taps": everywhere(taps, 4),
            "kept": None if kept is None else everywhere(kept.view(torch.uint8), 4),
            "lse": everywhere(lse, 3) if lse is not None and lse.numel() else None,
            "SOFTMAX": lse is not None,
            "time": time,
            "inputs": x.size(0),
            "batch": x.size(1),
            "heads": heads,
            "left": left,
            "scale": 1 / keep,
            "SHARED": taps.dim() == 2,
            "TAPS": kernel_size,
            "HEAD_DIM": self.shape[0],
        }

    def forward(self, y: Tensor) -> None:
        banded = self.banded and self.time > 1
        blocks = _forward_blocks(self.time, *self.shape, banded)
        kernel = forward_by_bands if banded else forward_by_taps
        self._launch(kernel, blocks, self.time, y=of_width(y, self.shape[0]))

    def backward(self, grad: Tensor, x_grad: Tensor | None, taps_grad: Tensor | None) -> None:
        """``taps_grad`` is ``[rows, batch, heads, kernel_size]``: for shared taps, partial sums."""
        kernel = backward_by_bands if self.banded else backward_by_taps
        length = max(self.time, 0 if x_grad is None else self.x.size(0))
        gradients = {
            "grad": of_width(grad, self.shape[0]),
            "x_grad": of_width(x_grad, self.shape[0]),
            "taps_grad": strided(taps_grad),
        }
        self._launch(kernel, self.backward_blocks(), length, **gradients)

    def backward_blocks(self) -> Blocks:
        length = max(self.time, self.x.size(0))
        return _backward_blocks(length, *self.shape, self.banded, self.x.dtype)

    def _launch(self, kernel, blocks: Blocks, length: int, **arguments) -> None:
        """A program per block of ``length`` and heads of a sentence."""
        groups = self.x.size(1) * cdiv(self.heads, blocks.heads)
        kernel_size = self.shape[1]
        given = {
            **self.inputs,
            **arguments,
            "PADDED": _padded(kernel_size),
            "PRECISION": precision(self.x.device),
            "ROWS": blocks.rows,
            "RUN": blocks.run,
            "HEADS": blocks.heads,
            "CHANNELS": blocks.channels,
        }
        programs = cdiv(length, blocks.rows) * groups
        launch(kernel, programs, given, VARYING, self.x, num_warps=blocks.warps, num_stages=1)


def _forward(
    x: Tensor, taps: Tensor, kept: Tensor | None, time: int, left: int, softmax: bool, keep: float
) -> tuple[Tensor, Tensor]:
    y, lse = outputs(x, taps, time, softmax and _keeps_sums(x, taps))
    if y.numel():
        kernels = _Kernels(x, taps, kept, lse if softmax else None, time, left, keep)
        kernels.forward(y)
    return y, lse


def _backward(
    grad: Tensor, lse: Tensor, x: Tensor, taps: Tensor, kept: Tensor | None, time: int, left: int,
    softmax: bool, keep: float, wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    kernels = _Kernels(x, taps, kept, lse if softmax else None, time, left, keep)
    shared = taps.dim() == 2
    runs = grad.numel() > 0 and any(wanted)
    new, x_grad, taps_grad = torch.empty if runs else torch.zeros, None, None
    if wanted[0]:
        x_grad = new(x.shape, dtype=x.dtype, device=x.device)
    if wanted[1]:
        rows = cdiv(time, kernels.backward_blocks().rows) if shared else time
        dtype = torch.float32 if shared else taps.dtype
        taps_grad = new(rows, x.size(1), *taps.shape[-2:], dtype=dtype, device=x.device)
    if runs:
        kernels.backward(grad, x_grad, taps_grad)
    if wanted[1] and shared:
        taps_grad = taps_grad.sum((0, 1)).to(taps.dtype)
    return x_grad, taps_grad


# Half precision is multiplied as such, and sums are float32. Products of float32 follow
# torch.backends.cuda.matmul.fp32_precision.
convolve = register("convolve_triton", _forward, _backward, DTYPES, DEVICES, _keeps_sums)
