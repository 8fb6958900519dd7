"""Short convolutions by the Triton kernels of ``triton_tiles``."""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import triton_tensors
from ..triton_tensors import (
    COMPILED,
    DEVICES,
    DTYPES,
    Strided,
    cdiv,
    on_device_of,
    power_of_2,
    precision,
    strided,
)
from .operators import register
from .triton_tiles import backward, backward_up, backward_x, backward_z, forward

MOST_TAPS = 16  # a program goes through all of them
MOST_RANKS = 64  # a program holds all of them, the static kernel's too
MOST_HEAD_DIM = 128  # a program has all channels of a head
CHANNELS = 64  # of a block, where it is not a head
LEAST = 16  # a side of the matrices that are multiplied


class Blocks(NamedTuple):
    """``rows`` of a tile, warps, and how many rounds of a loop are loaded at once. ``programs``
    share the gradient of up: three or five for each multiprocessor of an H100."""

    rows: int
    warps: int
    stages: int = 1
    programs: int = 0


# by what the kernels are made of, as measured on an H100; for wide heads without spilled registers
STATIC, LOW_RANK, HEADWISE, WIDE = "static", "low_rank", "headwise", "wide"
FORWARD = {
    STATIC: Blocks(32, 2),
    LOW_RANK: Blocks(32, 4, 3),
    HEADWISE: Blocks(32, 2),
    WIDE: Blocks(16, 2),
}
BACKWARD = {
    STATIC: Blocks(16, 4, programs=660),
    HEADWISE: Blocks(32, 4, programs=396),
    WIDE: Blocks(16, 8, programs=396),
}
OF_UP = Blocks(64, 8, 3, 396)  # of low rank
OF_Z = Blocks(32, 2, 3)
SHARED_MEMORY = 64 * 1024  # bytes for rounds that are loaded before they are used


def unfit(x: Tensor, z: Tensor, up: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if up.size(0) > MOST_RANKS:
        return f"takes at most {MOST_RANKS} ranks, one of them a static kernel, not {up.size(0)}"
    return _too_many_taps(up.size(1)) or triton_tensors.unfit(x, z, up)


def unfit_headwise(x: Tensor, taps: Tensor, static: Tensor) -> str:
    """As :func:`unfit`."""
    if x.size(2) > (taps.size(2) or x.size(2)) * MOST_HEAD_DIM:
        return f"takes heads of at most {MOST_HEAD_DIM} channels"
    return _too_many_taps(taps.size(3)) or triton_tensors.unfit(x, taps, static)


def _too_many_taps(taps: int) -> str:
    return "" if taps <= MOST_TAPS else f"takes kernels of at most {MOST_TAPS} taps, not {taps}"


def _strided(x: Tensor | None) -> Strided | None:
    """``[time, batch, channels]`` as of one head."""
    return None if x is None else Strided(x, x.stride(0), x.stride(1), 0, x.stride(2))


def _of_heads(taps: Tensor | None) -> Strided | None:
    """``[time, batch, heads, taps]``, if there are heads."""
    return None if taps is None or not taps.size(2) else strided(taps)


def _precision(x: Tensor) -> str:
    """tf32 has as many digits as float16."""
    exact = precision(x.device)
    return "tf32" if x.dtype == torch.float16 and exact == "tf32x3" else exact


class _Kernels:
    """Launches the kernels on given inputs: ``z``, or else ``taps`` of heads, possibly of none.

    ``up``: ``[ranks, taps, channels]``, contiguous and in the dtype of ``x``.
    """

    def __init__(
        self, x: Tensor, taps: Tensor | None, z: Tensor | None, up: Tensor,
        time: int, left: int, own: int,
    ):  # fmt: skip
        ranks, count, channels = up.shape
        self.x, self.time, self.up = x, time, up
        of_heads = _of_heads(taps)
        width = CHANNELS if of_heads is None else max(1, channels // taps.size(2))
        self.channel_blocks = cdiv(channels, width)
        padded_width = max(power_of_2(width), LEAST)
        if z is not None:
            self.kind = LOW_RANK
        elif of_heads is None:
            self.kind = STATIC
        else:
            self.kind = HEADWISE if padded_width <= CHANNELS else WIDE
        self.given = {
            "x": _strided(x),
            "taps": of_heads,
            "z": _strided(z),
            "up": up,
            "batch": x.size(1),
            "time": time,
            "inputs": x.size(0),
            "channels": channels,
            "left": left,
            "OWN": own,
            "TAPS": count,
            "RANKS": ranks,
            "PADDED": 1 if z is None else max(power_of_2(ranks), LEAST),
            "WIDTH": width,
            "CHANNELS": padded_width,
            "PRECISION": _precision(x),
        }

    def _tiles(self, rows: int, blocks: Blocks) -> int:
        return self.x.size(1) * cdiv(rows, blocks.rows)

    def _launch(self, kernel, programs: int, blocks: Blocks, **arguments) -> None:
        """With those of all arguments that the kernel has."""
        given = self.given | {"ROWS": blocks.rows, "STAGES": self._stages(blocks)} | arguments
        with on_device_of(self.x):
            kernel[(programs,)](
                **{name: given[name] for name in kernel.arg_names},
                num_warps=blocks.warps,
                num_stages=1,
                **COMPILED,
            )

    def _stages(self, blocks: Blocks) -> int:
        """Of a loop, whose rounds load rows of inputs and of gradients, and ``up`` or z."""
        taps = self.up.size(1)
        rows = (taps + 1) * blocks.rows + taps * max(self.given["PADDED"], LEAST)
        size = rows * self.given["CHANNELS"] * self.x.element_size()
        return 1 + min(blocks.stages - 1, SHARED_MEMORY // size)

    def forward(self) -> Tensor:
        y = self.x.new_empty(self.time, *self.x.shape[1:])
        if y.numel():
            blocks = FORWARD[self.kind]
            programs = self._tiles(self.time, blocks)
            programs *= 1 if self.kind == LOW_RANK else self.channel_blocks
            self._launch(forward, programs, blocks, y=_strided(y))
        return y

    def _groups(self, rows: int, blocks: Blocks) -> int:
        """How many programs share the tiles of a block of channels."""
        tiles = self._tiles(rows, blocks)
        return max(1, min(tiles, blocks.programs // self.channel_blocks))

    def backward(
        self, grad: Tensor, x_grad: Tensor | None, taps_grad: Tensor | None, of_up: bool
    ) -> Tensor | None:
        """Without z, fill the gradients of x and of taps; returns that of ``up``, if it is
        wanted."""
        blocks = BACKWARD[self.kind]
        rows = self.x.size(0)
        groups = self._groups(rows, blocks) if of_up else self._tiles(rows, blocks)
        sums = self._sums(groups) if of_up else None
        gradients = {
            "grad": _strided(grad),
            "x_grad": _strided(x_grad),
            "taps_grad": _of_heads(taps_grad),
            "up_grad": sums,
        }
        self._launch(backward, groups * self.channel_blocks, blocks, **gradients)
        return None if sums is None else sums.sum(0)

    def x_grad(self, grad: Tensor) -> Tensor:
        """The gradient of x, of low rank."""
        x_grad, blocks = self.x.new_empty(self.x.shape), FORWARD[self.kind]
        gradients = {"grad": _strided(grad), "x_grad": _strided(x_grad)}
        self._launch(backward_x, self._tiles(x_grad.size(0), blocks), blocks, **gradients)
        return x_grad

    def up_grad(self, grad: Tensor) -> Tensor:
        """The gradient of ``up`` in float32, of low rank."""
        groups = self._groups(self.time, OF_UP)
        gradients = {"grad": _strided(grad), "up_grad": self._sums(groups)}
        self._launch(backward_up, groups * self.channel_blocks, OF_UP, **gradients)
        return gradients["up_grad"].sum(0)

    def _sums(self, groups: int) -> Tensor:
        return self.up.new_empty(groups, *self.up.shape, dtype=torch.float32)

    def z_grad(self, grad: Tensor, dtype: torch.dtype) -> Tensor:
        """The gradient of z."""
        z_grad = self.given["z"].data.new_empty(*grad.shape[:2], self.up.size(0), dtype=dtype)
        gradients = {"grad": _strided(grad), "z_grad": _strided(z_grad)}
        self._launch(backward_z, self._tiles(self.time, OF_Z), OF_Z, **gradients)
        return z_grad


def _as(x: Tensor, up: Tensor) -> Tensor:
    return up.to(x.dtype).contiguous()


def _forward(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    return _Kernels(x, None, z.to(x.dtype), _as(x, up), z.size(0), left, own).forward()


def _backward(
    grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    if not grad.numel():
        return _nothing((x, z, up), wanted)
    kernels = _Kernels(x, None, z.to(x.dtype), _as(x, up), z.size(0), left, own)
    x_grad = kernels.x_grad(grad) if wanted[0] else None
    z_grad = kernels.z_grad(grad, z.dtype) if wanted[1] else None
    up_grad = kernels.up_grad(grad).to(up.dtype) if wanted[2] else None
    return x_grad, z_grad, up_grad


def _forward_headwise(x: Tensor, taps: Tensor, static: Tensor, left: int, own: int) -> Tensor:
    up = _as(x, static.t().unsqueeze(0))
    return _Kernels(x, taps, None, up, taps.size(0), left, own).forward()


def _backward_headwise(
    grad: Tensor, x: Tensor, taps: Tensor, static: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    if not grad.numel():
        return _nothing((x, taps, static), wanted)
    up = _as(x, static.t().unsqueeze(0))
    kernels = _Kernels(x, taps, None, up, taps.size(0), left, own)
    x_grad = x.new_empty(x.shape) if wanted[0] else None
    taps_grad = taps.new_zeros(taps.shape) if wanted[1] else None
    static_grad = kernels.backward(grad, x_grad, taps_grad, wanted[2])
    if static_grad is not None:
        static_grad = static_grad[0].t().to(static.dtype).contiguous()
    return x_grad, taps_grad, static_grad


def _nothing(inputs: tuple[Tensor, ...], wanted: list[bool]) -> tuple[Tensor | None, ...]:
    return tuple(
        x.new_zeros(x.shape) if want else None for x, want in zip(inputs, wanted, strict=True)
    )


convolve = register("short_convolve_triton", _forward, _backward, DTYPES, DEVICES)
convolve_headwise = register(
    "short_convolve_headwise_triton",
    _forward_headwise,
    _backward_headwise,
    DTYPES,
    DEVICES,
    headwise=True,
)
