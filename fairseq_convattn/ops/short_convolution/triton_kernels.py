"""Low-rank short convolutions by the Triton kernels of ``triton_tiles``."""

import torch
import triton
from torch import Tensor

from .. import triton_tensors
from ..triton_tensors import COMPILED, DEVICES, DTYPES, Strided, on_device_of, precision
from .operators import register
from .triton_tiles import backward_up, backward_x, backward_z, forward

MOST_TAPS = 16  # each is a product of its own
MOST_RANKS = 64  # a program holds all of them, the static kernel's too
ROWS, CHANNELS = 32, 64  # of a program's tile
LEAST = 16  # a side of the matrices that are multiplied
PROGRAMS = 1024  # that share the gradient of up, some for each multiprocessor


def unfit(x: Tensor, z: Tensor, up: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if up.size(1) > MOST_TAPS:
        return f"takes kernels of at most {MOST_TAPS} taps, not {up.size(1)}"
    if up.size(0) > MOST_RANKS:
        return f"takes a rank of at most {MOST_RANKS - 1} with a static kernel"
    return triton_tensors.unfit(x, z, up)


def _strided(x: Tensor | None) -> Strided | None:
    """``[time, batch, channels]`` as of one head."""
    return None if x is None else Strided(x, x.stride(0), x.stride(1), 0, x.stride(2))


def _launch(kernel, grid: tuple[int, ...], **arguments) -> None:
    with on_device_of(arguments["x"].data):
        kernel[grid](**arguments, num_warps=4, num_stages=1, **COMPILED)


def _arguments(x: Tensor, z: Tensor, up: Tensor, left: int) -> dict:
    ranks, taps, channels = up.shape
    return {
        "x": _strided(x),
        "batch": x.size(1),
        "time": z.size(0),
        "inputs": x.size(0),
        "channels": channels,
        "left": left,
        "TAPS": taps,
        "RANKS": ranks,
        "PADDED": max(triton.next_power_of_2(ranks), LEAST),
        "ROWS": ROWS,
        "CHANNELS": CHANNELS,
        "PRECISION": _precision(x),
    }


def _precision(x: Tensor) -> str:
    """tf32 has as many digits as float16."""
    exact = precision(x.device)
    return "tf32" if x.dtype == torch.float16 and exact == "tf32x3" else exact


def _tiles(batch: int, rows: int) -> int:
    return batch * triton.cdiv(rows, ROWS)


def _convolve(kernel, x: Tensor, z: Tensor, up: Tensor, rows: int, left: int, own: int) -> Tensor:
    y = x.new_empty(rows, *x.shape[1:])
    if y.numel():
        grid = (_tiles(x.size(1), rows) * triton.cdiv(x.size(2), CHANNELS),)
        given = _arguments(x, z, up, left) | {"z": _strided(z), "up": up, "y": _strided(y)}
        _launch(kernel, grid, rows=rows, OWN=own, **given)
    return y


def _forward(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    z, up = z.to(x.dtype), up.to(x.dtype).contiguous()
    return _convolve(forward, x, z, up, z.size(0), left, own)


def _z_grad(grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int) -> Tensor:
    z_grad = z.new_zeros(z.shape)
    if grad.numel():
        grid = (_tiles(z.size(1), z.size(0)),)
        gradients = {"grad": _strided(grad), "z_grad": _strided(z_grad)}
        _launch(backward_z, grid, up=up, **gradients, **_arguments(x, z, up, left))
    return z_grad


def _up_grad(grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int) -> Tensor:
    ranks, taps, channels = up.shape
    blocks = triton.cdiv(channels, CHANNELS)
    groups = min(_tiles(z.size(1), z.size(0)), max(1, PROGRAMS // max(1, taps * blocks)))
    sums = x.new_zeros(groups, *up.shape, dtype=torch.float32)
    if grad.numel():
        given = _arguments(x, z, up, left) | {"z": _strided(z), "grad": _strided(grad)}
        _launch(backward_up, (groups * taps * blocks,), up_grad=sums, **given)
    return sums.sum(0)


def _backward(
    grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    dtypes = x.dtype, z.dtype, up.dtype
    z, up = z.to(x.dtype), up.to(x.dtype).contiguous()
    gradients = (
        lambda: _convolve(backward_x, grad, z, up, x.size(0), left, own),
        lambda: _z_grad(grad, x, z, up, left),
        lambda: _up_grad(grad, x, z, up, left),
    )
    return tuple(
        found().to(dtype) if want else None
        for found, dtype, want in zip(gradients, dtypes, wanted, strict=True)
    )


convolve = register("short_convolve_triton", _forward, _backward, DTYPES, DEVICES)
