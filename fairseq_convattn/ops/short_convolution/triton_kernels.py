"""Low-rank short convolutions by the Triton kernels of ``triton_tiles``."""

import torch
import triton
from torch import Tensor

from .. import triton_tensors
from ..triton_tensors import DEVICES, DTYPES, Strided, on_device_of, precision
from .operators import register
from .triton_tiles import backward_tile, forward_tile

ROWS, CHANNELS = 32, 64  # of a program's tile
LEAST = 16  # a side of the matrices that are multiplied


def unfit(*tensors: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    return triton_tensors.unfit(*tensors)


def _strided(x: Tensor | None) -> Strided | None:
    """``[time, batch, channels]`` as of one head."""
    return None if x is None else Strided(x, x.stride(0), x.stride(1), 0, x.stride(2))


def _launch(kernel, grid: tuple[int, ...], **arguments) -> None:
    with on_device_of(arguments["x"].data):
        kernel[grid](**arguments, num_warps=4, num_stages=1)


def _arguments(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> dict:
    ranks, taps, channels = up.shape
    return {
        "x": _strided(x),
        "z": _strided(z),
        "up": up.contiguous(),
        "time": z.size(0),
        "inputs": x.size(0),
        "channels": channels,
        "left": left,
        "OWN": own,
        "TAPS": taps,
        "RANKS": ranks,
        "PADDED": max(triton.next_power_of_2(ranks), LEAST),
        "ROWS": ROWS,
        "CHANNELS": CHANNELS,
        "PRECISION": precision(x.device),
    }


def _forward(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    y = x.new_empty(z.size(0), *x.shape[1:])
    if y.numel():
        grid = triton.cdiv(z.size(0), ROWS), x.size(1), triton.cdiv(x.size(2), CHANNELS)
        _launch(forward_tile, grid, y=_strided(y), **_arguments(x, z, up, left, own))
    return y


def _backward(
    grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    tiles = triton.cdiv(max(x.size(0), z.size(0)), ROWS)
    x_grad = x.new_empty(x.shape) if wanted[0] else None
    z_grad = z.new_zeros(z.shape) if wanted[1] else None
    up_grad = None
    if wanted[2]:
        up_grad = up.new_empty(tiles, x.size(1), *up.shape, dtype=torch.float32)
    if grad.numel():
        gradients = {"x_grad": _strided(x_grad), "z_grad": _strided(z_grad), "up_grad": up_grad}
        arguments = _arguments(x, z, up, left, own)
        _launch(backward_tile, (tiles, x.size(1)), grad=_strided(grad), **gradients, **arguments)
    return x_grad, z_grad, None if up_grad is None else up_grad.sum((0, 1)).to(up.dtype)


convolve = register("short_convolve_triton", _forward, _backward, DTYPES, DEVICES)
