"""Both convolutions by compiled kernels, ``native/convolution.c``, as operators of PyTorch.

``convattn::convolve``, its backward and ``convattn::convolve_past`` take float32 and bfloat16
tensors on the CPU.
"""

import ctypes

import torch
from torch import Tensor

from .. import native
from ..native_tensors import DTYPES, Sequence, dense, run
from ..operators import define
from .operators import check, outputs, register


class _Sequence(Sequence):
    """With an index of its rows, if they are of a :class:`Past`."""

    _fields_ = [("index", ctypes.c_void_p), ("row_stride", ctypes.c_int64)]


class _Kernels(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("time_stride", "batch_stride", "head_stride")
    ]


class _Problem(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("time", "inputs", "batch", "heads", "head_dim", "taps", "left")
        ),
        *((name, ctypes.c_int64) for name in ("half", "half_taps", "shared", "softmax")),
        ("factor", ctypes.c_double),
        *((name, _Sequence) for name in ("x", "y", "grad", "grad_x")),
        *((name, _Kernels) for name in ("w", "kept", "grad_w")),
    ]


def _kernels(taps: Tensor) -> _Kernels:
    if taps.dim() == 2:
        return _Kernels(taps.data_ptr(), 0, 0, taps.stride(0))
    return _Kernels(taps.data_ptr(), *taps.stride()[:3])


def _problem(
    x: Tensor, taps: Tensor, kept: Tensor | None, time: int, left: int, softmax: bool, keep: float
) -> _Problem:
    heads, kernel_size = taps.shape[-2:]
    return _Problem(
        time=time,
        inputs=x.size(0),
        batch=x.size(1),
        heads=heads,
        head_dim=x.size(2) // heads,
        taps=kernel_size,
        left=left,
        half=x.dtype == torch.bfloat16,
        half_taps=taps.dtype == torch.bfloat16,
        shared=taps.dim() == 2,
        softmax=softmax,
        factor=1 / keep,
        x=_Sequence.of(x),
        w=_kernels(taps),
        kept=_Kernels() if kept is None else _kernels(kept),
    )


def _forward(
    x: Tensor, taps: Tensor, kept: Tensor | None, time: int, left: int, softmax: bool, keep: float
) -> tuple[Tensor, Tensor]:
    x, taps, kept = map(dense, (x, taps, kept))
    y, no_sums = outputs(x, taps, time, keeps_sums=False)
    if y.numel():
        problem = _problem(x, taps, kept, time, left, softmax, keep)
        problem.y = _Sequence.of(y)
        run(native.library.convattn_convolve, problem, backward=False)
    return y, no_sums


def _forward_from_past(
    rows: Tensor, index: Tensor, taps: Tensor, time: int, left: int, softmax: bool
) -> Tensor:
    """``index``, int64 ``[inputs, batch]``, must name rows that exist: the kernels trust it."""
    batch, channels = index.size(1), rows.size(2)
    if index.dtype != torch.int64:
        raise ValueError(f"index must be int64, not {index.dtype}")
    check(rows[:, :1].expand(-1, batch, -1), taps, None, time, DTYPES)
    rows, index, taps = rows.contiguous(), index.contiguous(), dense(taps)
    y = rows.new_empty(time, batch, channels)
    if y.numel():
        problem = _problem(rows, taps, None, time, left, softmax, 1.0)
        problem.inputs, problem.batch = index.shape
        problem.x = _Sequence(rows.data_ptr(), *index.stride(), index.data_ptr(), channels)
        problem.y = _Sequence.of(y)
        run(native.library.convattn_convolve, problem, backward=False)
    return y


def _backward(
    grad: Tensor, _: Tensor, x: Tensor, taps: Tensor, kept: Tensor | None, time: int, left: int,
    softmax: bool, keep: float, wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    grad, x, taps, kept = map(dense, (grad, x, taps, kept))
    problem = _problem(x, taps, kept, time, left, softmax, keep)
    problem.grad = _Sequence.of(grad)
    runs = grad.numel() > 0 and x.numel() > 0 and any(wanted)
    new, grad_x, grad_taps = torch.empty if runs else torch.zeros, None, None
    if wanted[0]:
        grad_x = new(x.shape, dtype=x.dtype)
        problem.grad_x = _Sequence.of(grad_x)
    if wanted[1]:
        tiles = -(-grad.size(0) // native.library.convattn_tile_of_convolution())
        rows = grad.size(0) if taps.dim() == 4 else tiles
        grad_taps = new(rows, x.size(1), *taps.shape[-2:], dtype=torch.float32)
        problem.grad_w = _kernels(grad_taps)
    if runs:
        run(native.library.convattn_convolve, problem, backward=True)
    if wanted[1]:
        grad_taps = (grad_taps if taps.dim() == 4 else grad_taps.sum((0, 1))).to(taps.dtype)
    return grad_x, grad_taps


def _fake_from_past(rows, index, taps, time, left, softmax) -> Tensor:
    return rows.new_empty(time, index.size(1), rows.size(2))


convolve = register("convolve", _forward, _backward, DTYPES, ("CPU",), lambda x, taps: False)
define(
    "convolve_past",
    "(Tensor rows, Tensor index, Tensor taps, SymInt time, SymInt left, bool softmax) -> Tensor",
    _forward_from_past,
    _fake_from_past,
)
