"""Short convolutions by compiled kernels, ``native/short_convolution.c``."""

import ctypes
from typing import Self

import torch
from torch import Tensor

from .. import native
from ..native_tensors import DTYPES, Sequence, dense, run, unfit
from .operators import register

VECTOR = 16  # floats of the widest
MOST_STATIC_TAPS = 32  # above, PyTorch's convolution is the faster way for a static kernel
# Sentences share a gradient of u until they have so many tokens, unless there are fewer pieces.
TOKENS, PIECES = 512, 64


class _Factor(ctypes.Structure):
    """``[ranks, taps, channels]``, with any strides."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((n, ctypes.c_int64) for n in ("rank_stride", "tap_stride", "channel_stride")),
    ]

    @classmethod
    def of(cls, up: Tensor) -> Self:
        return cls(up.data_ptr(), *up.stride())


class _Problem(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int64) for n in ("time", "inputs", "batch", "channels", "ranks", "taps")),
        *((n, ctypes.c_int64) for n in ("left", "sentences", "own", "half")),
        *((n, ctypes.c_int64) for n in ("z_is_half", "u_is_half", "stride", "is_static")),
        *((n, ctypes.c_int64) for n in ("heads", "head_dim", "in_blocks")),
        *((n, Sequence) for n in ("x", "y", "grad", "grad_x", "z", "grad_z")),
        *((n, _Factor) for n in ("u", "grad_u")),
    ]


PANEL = native.library.convattn_panel_of_short_convolution() if native.is_built() else 0  # channels


def unfit_headwise(x: Tensor, taps: Tensor, static: Tensor) -> str:
    """As :func:`unfit`, of taps of any number of heads, and static ones."""
    return unfit(x, taps, static) or _unfit_heads(x, taps)


def _unfit_heads(x: Tensor, taps: Tensor) -> str:
    head_dim = x.size(2) // (taps.size(2) or 1)
    if not taps.size(2) or head_dim in (16, 32) or head_dim and head_dim % PANEL == 0:
        return ""
    return f"takes heads of 16, 32 or a multiple of {PANEL} channels, not of {head_dim}"


class _Kernels:
    """Runs the kernels on given inputs.

    Args:
        z: ``[time, batch, ranks]``, or taps ``[time, batch, heads >= 0, taps]``.
        up: ``[ranks, taps, channels]``; the static taps, ``[1, taps, channels]``, if z are taps.
    """

    def __init__(self, x: Tensor, z: Tensor, up: Tensor, left: int, own: int):
        is_static = z.dim() == 4
        heads = z.size(2) if is_static else 0
        self.x, self.z, self.up, self.shape_of_z = dense(x), dense(z.flatten(2)), up, z.shape
        halves = [each.dtype == torch.bfloat16 for each in (x, z, up)]
        self.problem = _Problem(
            time=z.size(0),
            inputs=x.size(0),
            batch=x.size(1),
            channels=x.size(2),
            ranks=self.z.size(2),
            taps=up.size(1),
            left=left,
            sentences=1,
            own=own,
            half=halves[0],
            z_is_half=halves[1],
            u_is_half=halves[2],
            stride=1 if is_static else -(-z.size(2) // VECTOR) * VECTOR,
            is_static=is_static,
            heads=heads,
            head_dim=x.size(2) // heads if heads else PANEL,
            in_blocks=all(halves) and not is_static and native.instructions() == "amx",
            x=Sequence.of(self.x),
            z=Sequence.of(self.z),
            u=_Factor.of(up),
        )

    def forward(self) -> Tensor:
        y = self.x.new_empty(self.z.size(0), *self.x.shape[1:])
        self.problem.y = Sequence.of(y)
        run(native.library.convattn_short_convolve, self.problem, backward=False)
        return y

    def backward(self, grad: Tensor, wanted: list[bool]) -> tuple[Tensor | None, ...]:
        """The gradients of x, z and up that are wanted, the last in the order of up in memory."""
        grad, problem, (time, batch) = dense(grad), self.problem, self.shape_of_z[:2]
        problem.grad = Sequence.of(grad)
        grad_x = grad_z = grad_u = None
        if wanted[0]:
            grad_x = self.x.new_empty(self.x.shape)
            problem.grad_x = Sequence.of(grad_x)
        if wanted[1]:
            grad_z = self.z.new_empty(self.shape_of_z)
            problem.grad_z = Sequence.of(grad_z.flatten(2))
        if wanted[2]:
            problem.sentences = max(1, min(-(-TOKENS // time), -(-batch // PIECES)))
            grad_u = torch.empty_like(self.up)
            problem.grad_u = _Factor.of(grad_u)
        run(native.library.convattn_short_convolve, problem, backward=True)
        return grad_x, grad_z, grad_u


def _forward(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    return _Kernels(x, z, up, left, own).forward()


def _backward(
    grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    grad_x, grad_z, grad_up = _Kernels(x, z, up, left, own).backward(grad, wanted)
    return grad_x, grad_z, grad_up if grad_up is None else grad_up.contiguous()


def _headwise_kernels(x: Tensor, taps: Tensor, static: Tensor, left: int, own: int) -> _Kernels:
    if reason := _unfit_heads(x, taps) if native.is_built() else native.NOT_BUILT:
        raise ValueError(f"convattn::short_convolve_headwise {reason}")
    return _Kernels(x, taps, static.t().unsqueeze(0), left, own)


def _headwise_forward(*given) -> Tensor:
    return _headwise_kernels(*given).forward()


def _headwise_backward(grad: Tensor, *rest) -> tuple[Tensor | None, ...]:
    *given, wanted = rest
    grad_x, grad_taps, grad_static = _headwise_kernels(*given).backward(grad, wanted)
    if wanted[2]:
        grad_static = grad_static.squeeze(0).t().contiguous()
    return grad_x, grad_taps, grad_static


convolve = register("short_convolve", _forward, _backward, DTYPES, ("CPU",))
convolve_headwise = register(
    "short_convolve_headwise",
    _headwise_forward,
    _headwise_backward,
    DTYPES,
    ("CPU",),
    headwise=True,
)
