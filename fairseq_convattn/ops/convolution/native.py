"""Both convolutions by compiled kernels, ``native/convolution.c``, as operators of PyTorch.

``convattn::convolve`` and ``convattn::convolve_backward`` take float32 and bfloat16 tensors
on the CPU.
"""

import ctypes

import torch
from torch import Tensor

from .. import native
from ..implementation import is_transformed
from ..native import is_built
from .past import Past

DTYPES = (torch.float32, torch.bfloat16)


class _Sequence(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("time_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("index", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
    ]


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


_library = native.library


def unfit(x: Tensor, taps: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if x.device.type != "cpu" or taps.device.type != "cpu":
        return "is for tensors on the CPU"
    if x.dtype not in DTYPES or taps.dtype not in DTYPES:
        return f"takes float32 and bfloat16, not {x.dtype} and {taps.dtype}"
    if torch.jit.is_tracing() or is_transformed():
        return "knows neither torch.jit.trace nor torch.func and forward-mode differentiation"
    return "" if is_built() else native.NOT_BUILT


def convolve(
    x: Tensor,
    taps: Tensor,
    time: int,
    left: int,
    *,
    softmax: bool = False,
    kept: Tensor | None = None,
    keep: float = 1.0,
) -> Tensor:
    """Same contract as :func:`reference.convolve`; no second derivatives."""
    return torch.ops.convattn.convolve(x, taps, kept, time, left, softmax, 1 / keep)


def continue_from(past: Past, taps: Tensor, time: int, left: int, *, softmax: bool) -> Tensor:
    """As :func:`convolve` with the inputs of ``past``; no derivatives."""
    return torch.ops.convattn.convolve_past(past.rows, past.index, taps, time, left, softmax)


def _sequence(x: Tensor) -> _Sequence:
    return _Sequence(x.data_ptr(), x.stride(0), x.stride(1))


def _kernels(taps: Tensor) -> _Kernels:
    if taps.dim() == 2:
        return _Kernels(taps.data_ptr(), 0, 0, taps.stride(0))
    return _Kernels(taps.data_ptr(), *taps.stride()[:3])


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _problem(
    x: Tensor, taps: Tensor, kept: Tensor | None, time: int, left: int, softmax: bool, factor: float
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
        factor=factor,
        x=_sequence(x),
        w=_kernels(taps),
        kept=_Kernels() if kept is None else _kernels(kept),
    )


def _run(problem: _Problem, backward: bool) -> None:
    threads = torch.get_num_threads()
    run, how = _library.convattn_convolve, (backward, threads, native.run_in_parallel)
    if run(ctypes.byref(problem), *how):
        raise MemoryError("no memory for the convolution's scratch")


_operators = torch.library.Library("convattn", "DEF")
_operators.define(
    "convolve_past(Tensor rows, Tensor index, Tensor taps, SymInt time, SymInt left, "
    "bool softmax) -> Tensor"
)
_HOW = "SymInt left, bool softmax, float factor"
_operators.define(f"convolve(Tensor x, Tensor taps, Tensor? kept, SymInt time, {_HOW}) -> Tensor")
_operators.define(
    f"convolve_backward(Tensor grad, Tensor x, Tensor taps, Tensor? kept, {_HOW}, bool needs_x, "
    "bool needs_taps) -> (Tensor, Tensor)"
)


def _check(x: Tensor, taps: Tensor, kept: Tensor | None, time: int) -> None:
    """What the kernels rely on; :func:`dynamic_conv` has checked it with better words."""
    heads = taps.size(-2)
    goes_together = x.dim() == 3 and heads > 0 and x.size(2) % heads == 0 and taps.size(-1) > 0
    if taps.dim() != 2:
        goes_together = goes_together and taps.dim() == 4 and taps.shape[:2] == (time, x.size(1))
    if kept is not None:
        goes_together = goes_together and (kept.shape, kept.dtype) == (taps.shape, torch.bool)
    if not goes_together or x.dtype not in DTYPES or taps.dtype not in DTYPES:
        raise ValueError(f"x {list(x.shape)} {x.dtype}, taps {list(taps.shape)} {taps.dtype}")


def _forward(
    x: Tensor,
    taps: Tensor,
    kept: Tensor | None,
    time: int,
    left: int,
    softmax: bool,
    factor: float,
) -> Tensor:
    _check(x, taps, kept, time)
    x, taps, kept = _dense(x), _dense(taps), kept if kept is None else _dense(kept)
    y = x.new_empty(time, *x.shape[1:])
    if y.numel():
        problem = _problem(x, taps, kept, time, left, softmax, factor)
        problem.y = _sequence(y)
        _run(problem, backward=False)
    return y


def _forward_from_past(
    rows: Tensor, index: Tensor, taps: Tensor, time: int, left: int, softmax: bool
) -> Tensor:
    batch, channels = index.size(1), rows.size(2)
    _check(rows[:, :1].expand(-1, batch, -1), taps, None, time)
    rows, index, taps = rows.contiguous(), index.contiguous(), _dense(taps)
    y = rows.new_empty(time, batch, channels)
    if y.numel():
        problem = _problem(rows, taps, None, time, left, softmax, 1.0)
        problem.inputs, problem.batch = index.shape
        problem.x = _Sequence(rows.data_ptr(), *index.stride(), index.data_ptr(), channels)
        problem.y = _sequence(y)
        _run(problem, backward=False)
    return y


def _backward(
    grad: Tensor,
    x: Tensor,
    taps: Tensor,
    kept: Tensor | None,
    left: int,
    softmax: bool,
    factor: float,
    needs_x: bool,
    needs_taps: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``x`` and of ``taps``; empty where not needed."""
    _check(x, taps, kept, grad.size(0))
    grad, x, taps = _dense(grad.to(x.dtype)), _dense(x), _dense(taps)
    kept = kept if kept is None else _dense(kept)
    problem = _problem(x, taps, kept, grad.size(0), left, softmax, factor)
    problem.grad = _sequence(grad)
    grad_x, grad_taps = x.new_empty(0), taps.new_empty(0)
    if needs_x:
        grad_x = x.new_empty(x.shape)
        problem.grad_x = _sequence(grad_x)
    if needs_taps:
        tiles = -(-grad.size(0) // _library.convattn_tile_of_convolution())
        rows = grad.size(0) if taps.dim() == 4 else tiles
        grad_taps = taps.new_empty(rows, x.size(1), *taps.shape[-2:], dtype=torch.float32)
        problem.grad_w = _kernels(grad_taps)
    if grad.numel() and x.numel() and (needs_x or needs_taps):
        _run(problem, backward=True)
    else:
        grad_x.zero_(), grad_taps.zero_()
    if needs_taps:
        grad_taps = (grad_taps if taps.dim() == 4 else grad_taps.sum((0, 1))).to(taps.dtype)
    return grad_x, grad_taps


def _save(ctx, inputs, output) -> None:
    x, taps, kept, _, *ctx.how = inputs
    ctx.save_for_backward(x, taps, kept)


def _differentiate(ctx, grad: Tensor):
    needed = ctx.needs_input_grad[:2]
    grads = torch.ops.convattn.convolve_backward(grad, *ctx.saved_tensors, *ctx.how, *needed)
    x, taps = (g if need else None for g, need in zip(grads, needed, strict=True))
    return x, taps, None, None, None, None, None


def _no_second_derivatives(ctx, *grads):
    raise RuntimeError(
        "the compiled convolution has no second derivatives: compute them with "
        "CONVATTN_IMPL=reference"
    )


def _fake(x, taps, kept, time, left, softmax, factor):
    return x.new_empty(time, *x.shape[1:])


def _fake_backward(grad, x, taps, kept, left, softmax, factor, needs_x, needs_taps):
    return x.new_empty(x.shape if needs_x else 0), taps.new_empty(taps.shape if needs_taps else 0)


_operators.impl("convolve", _forward, "CPU")
_operators.impl("convolve_past", _forward_from_past, "CPU")
_operators.impl("convolve_backward", _backward, "CPU")
torch.library.register_fake("convattn::convolve", _fake)
torch.library.register_fake(
    "convattn::convolve_past",
    lambda rows, index, taps, time, left, softmax: rows.new_empty(
        time, index.size(1), rows.size(2)
    ),
)
torch.library.register_fake("convattn::convolve_backward", _fake_backward)
torch.library.register_autograd("convattn::convolve", _differentiate, setup_context=_save)
torch.library.register_autograd("convattn::convolve_backward", _no_second_derivatives)
