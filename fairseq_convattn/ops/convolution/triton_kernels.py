"""Both convolutions by the Triton kernels of ``triton_tiles``, as operators of PyTorch."""

import contextlib
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..implementation import is_transformed
from .triton_tiles import backward_by_bands, backward_by_taps, forward_by_bands, forward_by_taps

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_TAPS = 64
LEAST = 16  # a side of the matrices that are multiplied


class Blocks(NamedTuple):
    """What a program computes at once, in powers of two.

    ``rows`` positions of ``heads`` heads and ``channels`` channels of each; in products one head,
    and ``LEAST`` or more of all else.
    """

    rows: int
    heads: int
    channels: int
    warps: int


def unfit(x: Tensor, taps: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if not (x.is_cuda and taps.is_cuda) and not INTERPRETED:
        return (
            "needs tensors on a GPU, or TRITON_INTERPRET=1 in the environment before Triton is "
            "imported"
        )
    if x.is_cuda and _capability(x.device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or more"
    if not x.is_cuda and torch.bfloat16 in (x.dtype, taps.dtype):
        return "needs a GPU for bfloat16, whose bits Triton's interpreter multiplies as integers"
    if x.dtype not in DTYPES or taps.dtype not in DTYPES:
        return f"takes float32 and half precision, not {x.dtype} and {taps.dtype}"
    if taps.size(-1) > MOST_TAPS:
        return f"takes kernels of at most {MOST_TAPS} taps, not {taps.size(-1)}"
    if torch.jit.is_tracing() or is_transformed():
        return "knows neither torch.jit.trace nor torch.func and forward-mode differentiation"
    return ""


@torch.compiler.assume_constant_result
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def convolve(
    x: Tensor,
    taps: Tensor,
    time: int,
    left: int,
    softmax: bool = False,
    kept: Tensor | None = None,
    keep: float = 1.0,
) -> Tensor:
    """Same contract as :func:`reference.convolve`; no second derivatives.

    Half precision is multiplied as such, and sums are float32. Products of float32 follow
    ``torch.set_float32_matmul_precision``.
    """
    operator = torch.ops.convattn.convolve_triton
    return operator(x, taps, kept, time, left, softmax, keep)[0]


def _multiplies_bands(head_dim: int, kernel_size: int, dtype: torch.dtype) -> bool:
    """Whether products take fewer instructions than taps one by one, as counted for sm_90."""
    if head_dim < LEAST:
        return kernel_size > 15
    return kernel_size > (7 if dtype == torch.float32 else 3)


def _forward_blocks(time: int, head_dim: int, kernel_size: int, banded: bool) -> Blocks:
    rows = min(triton.next_power_of_2(time), 64)
    if banded:
        return Blocks(rows, 1, _channels(head_dim), 4)
    return _blocks_of_taps(rows, head_dim, kernel_size)


def _backward_blocks(time: int, head_dim: int, kernel_size: int, banded: bool) -> Blocks:
    if banded:  # no more rows than padded taps: a larger part of the band matrix is zero
        rows = min(max(triton.next_power_of_2(time), LEAST), 64 if kernel_size > 32 else 32)
        return Blocks(rows, 1, _channels(head_dim), 4 if rows > 32 else 2)
    return _blocks_of_taps(min(triton.next_power_of_2(time), 64), head_dim, kernel_size)


def _blocks_of_taps(rows: int, head_dim: int, kernel_size: int) -> Blocks:
    """Several heads, if narrow, as long as all their taps fit into registers."""
    channels = min(triton.next_power_of_2(head_dim), 64)
    width = max(channels, triton.next_power_of_2(kernel_size))
    heads = max(1, 16 // width)
    return Blocks(rows, heads, channels, min(4, max(1, rows * heads * width // 512)))


def _channels(head_dim: int) -> int:
    return min(max(triton.next_power_of_2(head_dim), LEAST), 64)


def _precision(device: torch.device) -> str:
    """Triton's name for how float32 is multiplied; tf32x3 is as precise as float32."""
    if device.type != "cuda" or torch.version.hip:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _on_device_of(x: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


class _Strided(NamedTuple):
    """A tensor ``[time, batch, heads, ...]`` as the kernels take it."""

    data: Tensor
    t: int
    b: int
    h: int
    c: int = 0


def _strided(x: Tensor | None) -> _Strided | None:
    return None if x is None else _Strided(x, *x.stride())


class _Kernels:
    """Launches the kernels on given inputs. ``lse`` is None without a softmax."""

    def __init__(
        self, x: Tensor, taps: Tensor, kept: Tensor | None, lse: Tensor | None,
        time: int, left: int, keep: float,
    ):  # fmt: skip
        heads, kernel_size = taps.shape[-2:]
        size = time, x.size(1), heads
        self.x, self.time, self.heads = x, time, heads
        self.shape = x.size(2) // heads, kernel_size
        self.banded = _multiplies_bands(*self.shape, x.dtype)
        self.inputs = {
            "x": self._by_heads(x),
            "taps": _strided(taps.expand(*size, -1)),
            "kept": None if kept is None else _strided(kept.view(torch.uint8).expand(*size, -1)),
            "lse": None if lse is None else _strided(lse.expand(size)),
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
        self.banded &= self.time >= LEAST
        blocks = _forward_blocks(self.time, *self.shape, self.banded)
        kernel = forward_by_bands if self.banded else forward_by_taps
        self._launch(kernel, blocks, self.time, y=self._by_heads(y))

    def backward(self, grad: Tensor, x_grad: Tensor | None, taps_grad: Tensor | None) -> None:
        """``taps_grad`` is ``[rows, batch, heads, kernel_size]``: for shared taps, partial sums."""
        kernel = backward_by_bands if self.banded else backward_by_taps
        length = max(self.time, 0 if x_grad is None else self.x.size(0))
        gradients = {"x_grad": self._by_heads(x_grad), "taps_grad": _strided(taps_grad)}
        self._launch(kernel, self.backward_blocks(), length, grad=self._by_heads(grad), **gradients)

    def backward_blocks(self) -> Blocks:
        return _backward_blocks(max(self.time, self.x.size(0)), *self.shape, self.banded)

    def _by_heads(self, x: Tensor | None) -> _Strided | None:
        return None if x is None else _strided(x.unflatten(2, (self.heads, -1)))

    def _launch(self, kernel, blocks: Blocks, length: int, **arguments) -> None:
        """A program per block of ``length`` and heads of a sentence."""
        groups = self.x.size(1) * triton.cdiv(self.heads, blocks.heads)
        padded = triton.next_power_of_2(self.shape[1])
        if self.banded:
            arguments |= {"PADDED": max(padded, LEAST), "PRECISION": _precision(self.x.device)}
        else:
            arguments |= {"PADDED": padded, "HEADS": blocks.heads}
        with _on_device_of(self.x):
            kernel[(triton.cdiv(length, blocks.rows) * groups,)](
                **self.inputs,
                **arguments,
                ROWS=blocks.rows,
                CHANNELS=blocks.channels,
                num_warps=blocks.warps,
                num_stages=1,
            )


_operators = torch.library.Library("convattn", "FRAGMENT")
_operators.define(
    "convolve_triton(Tensor x, Tensor taps, Tensor? kept, SymInt time, SymInt left, bool softmax, "
    "float keep) -> (Tensor, Tensor)"
)
_operators.define(
    "convolve_triton_backward(Tensor grad, Tensor x, Tensor taps, Tensor? kept, Tensor lse, "
    "SymInt left, bool softmax, float keep, bool needs_x, bool needs_taps) -> (Tensor, Tensor)"
)


def _check(x: Tensor, taps: Tensor, kept: Tensor | None, time: int) -> None:
    """What the kernels rely on; :func:`dynamic_conv` has checked it with better words."""
    heads, kernel_size = taps.shape[-2:]
    fits = x.dim() == 3 and heads > 0 and x.size(2) % heads == 0 and 0 < kernel_size <= MOST_TAPS
    if taps.dim() != 2:
        fits = fits and taps.dim() == 4 and taps.shape[:2] == (time, x.size(1))
    if kept is not None:
        fits = fits and kept.shape == taps.shape and kept.dtype == torch.bool
    if not fits or x.dtype not in DTYPES or taps.dtype not in DTYPES:
        given = {"x": x, "taps": taps, "kept": kept}
        given = [f"{n} {list(t.shape)} {t.dtype}" for n, t in given.items() if t is not None]
        raise ValueError(", ".join(given))


def _forward(
    x: Tensor, taps: Tensor, kept: Tensor | None, time: int, left: int, softmax: bool, keep: float
) -> tuple[Tensor, Tensor]:
    """Outputs, and the binary logarithms of sums of exponentials; empty without a softmax."""
    _check(x, taps, kept, time)
    y, lse = _fake_forward(x, taps, kept, time, left, softmax, keep)
    if y.numel():
        kernels = _Kernels(x, taps, kept, lse if softmax else None, time, left, keep)
        kernels.forward(y)
    return y, lse


def _backward(
    grad: Tensor, x: Tensor, taps: Tensor, kept: Tensor | None, lse: Tensor, left: int,
    softmax: bool, keep: float, needs_x: bool, needs_taps: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of ``x`` and of ``taps``; empty where not needed."""
    time = grad.size(0)
    _check(x, taps, kept, time)
    kernels = _Kernels(x, taps, kept, lse if softmax else None, time, left, keep)
    shared = taps.dim() == 2
    x_grad, taps_grad = x.new_empty(x.shape if needs_x else 0), taps.new_empty(0)
    if needs_taps:
        rows = triton.cdiv(time, kernels.backward_blocks().rows) if shared else time
        dtype = torch.float32 if shared else taps.dtype
        taps_grad = taps.new_empty(rows, x.size(1), *taps.shape[-2:], dtype=dtype)
    if grad.numel() and (needs_x or needs_taps):
        gradients = x_grad if needs_x else None, taps_grad if needs_taps else None
        kernels.backward(grad.to(x.dtype), *gradients)
    else:
        x_grad.zero_(), taps_grad.zero_()
    if needs_taps and shared:
        taps_grad = taps_grad.sum((0, 1)).to(taps.dtype)
    return x_grad, taps_grad


def _fake_forward(x, taps, kept, time, left, softmax, keep):
    lse = taps.new_empty(taps.shape[:-1] if softmax else 0, dtype=torch.float32)
    return x.new_empty(time, *x.shape[1:]), lse


def _fake_backward(grad, x, taps, kept, lse, left, softmax, keep, needs_x, needs_taps):
    return x.new_empty(x.shape if needs_x else 0), taps.new_empty(taps.shape if needs_taps else 0)


def _save(ctx, inputs, output) -> None:
    x, taps, kept, _, *ctx.options = inputs
    ctx.save_for_backward(x, taps, kept, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad: Tensor | None, _):
    if grad is None:
        return (None,) * 7
    needed = ctx.needs_input_grad[:2]
    operator = torch.ops.convattn.convolve_triton_backward
    grads = operator(grad, *ctx.saved_tensors, *ctx.options, *needed)
    x, taps = (g if need else None for g, need in zip(grads, needed, strict=True))
    return x, taps, None, None, None, None, None


def _no_second_derivatives(ctx, *grads):
    raise RuntimeError(
        "the convolution's Triton kernels have no second derivatives: compute them with "
        "CONVATTN_IMPL=reference"
    )


INTERPRETED = not isinstance(forward_by_taps, triton.JITFunction)

for _key in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
    _operators.impl("convolve_triton", _forward, _key)
    _operators.impl("convolve_triton_backward", _backward, _key)
torch.library.register_fake("convattn::convolve_triton", _fake_forward)
torch.library.register_fake("convattn::convolve_triton_backward", _fake_backward)
torch.library.register_autograd("convattn::convolve_triton", _differentiate, setup_context=_save)
torch.library.register_autograd("convattn::convolve_triton_backward", _no_second_derivatives)
