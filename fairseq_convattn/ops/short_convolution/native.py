"""Short convolutions by compiled kernels, ``native/short_convolution.c``."""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import native
from ..native_tensors import DTYPES, Sequence, dense, run, unfit
from .operators import register

VECTOR = 16  # floats of the widest
MOST_STATIC_TAPS = 32  # above, PyTorch's convolution is the faster way for a static kernel
# Sentences share a gradient of u until they have so many tokens, unless there are fewer pieces.
TOKENS, PIECES = 512, 64


class _Problem(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int64) for n in ("time", "inputs", "batch", "channels", "ranks", "taps")),
        *((n, ctypes.c_int64) for n in ("left", "sentences", "own", "half", "stride")),
        *((n, ctypes.c_int64) for n in ("is_static", "heads", "head_dim", "in_blocks")),
        *((n, Sequence) for n in ("x", "y", "grad", "grad_x")),
        *((n, ctypes.c_void_p) for n in ("z", "u", "grad_z", "grad_u")),
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


def _in_panels(up: Tensor, vector: int = VECTOR) -> Tensor:
    """``[panels, taps, ranks, channels of a panel]``, with zeros at the end of channels and of
    ranks, which are whole vectors."""
    padded = F.pad(up.float(), (0, -up.size(2) % PANEL, 0, 0, 0, -up.size(0) % vector))
    return padded.unflatten(2, (-1, PANEL)).permute(2, 1, 0, 3).contiguous()


class _Kernels:
    """Runs the kernels on given inputs.

    Args:
        z: ``[time, batch, ranks]``, or taps ``[time, batch, heads >= 0, taps]``.
        up: ``[ranks, taps, channels]``; the static taps, ``[1, taps, channels]``, if z are taps.
    """

    def __init__(self, x: Tensor, z: Tensor, up: Tensor, left: int, own: int):
        heads = z.size(2) if z.dim() == 4 else 0
        self.head_dim = x.size(2) // heads if heads else PANEL
        self.x, self.z, self.up, self.is_static = dense(x), z, up, z.dim() == 4
        self.ranks = z.flatten(2).float().contiguous()
        self.u = _in_panels(up, 1 if self.is_static else VECTOR)
        all_halves = {x.dtype, z.dtype, up.dtype} == {torch.bfloat16}
        self.problem = _Problem(
            time=z.size(0),
            inputs=x.size(0),
            batch=x.size(1),
            channels=x.size(2),
            ranks=self.ranks.size(2),
            taps=up.size(1),
            left=left,
            sentences=1,
            own=own,
            half=x.dtype == torch.bfloat16,
            stride=self.u.size(2),
            is_static=self.is_static,
            heads=heads,
            head_dim=self.head_dim,
            in_blocks=all_halves and not self.is_static and native.instructions() == "amx",
            x=Sequence.of(self.x),
            z=self.ranks.data_ptr(),
            u=self.u.data_ptr(),
        )

    def forward(self) -> Tensor:
        y = self.x.new_empty(self.z.size(0), *self.x.shape[1:])
        self.problem.y = Sequence.of(y)
        run(native.library.convattn_short_convolve, self.problem, backward=False)
        return y

    def backward(self, grad: Tensor, wanted: list[bool]) -> tuple[Tensor | None, ...]:
        """The gradients of x, z and up that are wanted."""
        grad, problem, (time, batch) = dense(grad), self.problem, self.z.shape[:2]
        problem.grad = Sequence.of(grad)
        grad_x = grad_z = grad_u = None
        if wanted[0]:
            grad_x = self.x.new_empty(self.x.shape)
            problem.grad_x = Sequence.of(grad_x)
        if wanted[1]:
            shares, ranks = self.u.size(0), self.u.size(2)
            if self.is_static:
                shares, ranks = max(1, self.head_dim // PANEL), self.ranks.size(2)
            grad_z = self.u.new_empty(shares, time, batch, ranks)
            problem.grad_z = grad_z.data_ptr()
        if wanted[2]:
            problem.sentences = max(1, min(-(-TOKENS // time), -(-batch // PIECES)))
            grad_u = self.u.new_empty(-(-batch // problem.sentences), *self.u.shape)
            problem.grad_u = grad_u.data_ptr()
        run(native.library.convattn_short_convolve, self.problem, backward=True)
        if wanted[1]:
            grad_z = grad_z.sum(0)[..., : self.ranks.size(2)].reshape(self.z.shape)
            grad_z = grad_z.to(self.z.dtype).contiguous()
        if wanted[2]:
            grad_u = grad_u.sum(0).permute(2, 1, 0, 3).flatten(2)
            grad_u = grad_u[: self.up.size(0), :, : self.up.size(2)].to(self.up.dtype).contiguous()
        return grad_x, grad_z, grad_u


def _forward(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    return _Kernels(x, z, up, left, own).forward()


def _backward(
    grad: Tensor, x: Tensor, z: Tensor, up: Tensor, left: int, own: int, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    return _Kernels(x, z, up, left, own).backward(grad, wanted)


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
