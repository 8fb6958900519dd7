"""Both convolutions in Triton kernels, as operators of PyTorch.

A program takes a tile of time of one sentence and one head, or several narrow ones, and
normalises the taps that it uses, which exist nowhere else. Few taps are summed one by one. Many
are products with the tile's band matrix, whose row i has the taps of output i from column i on:
``Y = Band X``, ``dX = Band^T dY``, and the taps' gradients are the diagonals of ``dY X^T``.
No atomics, so that the same inputs give the same bits.
"""

import contextlib
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

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
    if torch.jit.is_tracing() or _is_transformed():
        return "knows neither torch.jit.trace nor torch.func and forward-mode differentiation"
    return ""


@torch.compiler.assume_constant_result
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _is_transformed() -> bool:
    in_forward_mode = torch.autograd.forward_ad._current_level >= 0
    return in_forward_mode or torch._C._functorch.maybe_current_level() is not None


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
        kernel = _forward_by_bands if self.banded else _forward_by_taps
        self._launch(kernel, blocks, self.time, y=self._by_heads(y))

    def backward(self, grad: Tensor, x_grad: Tensor | None, taps_grad: Tensor | None) -> None:
        """``taps_grad`` is ``[rows, batch, heads, kernel_size]``: for shared taps, partial sums."""
        kernel = _backward_by_bands if self.banded else _backward_by_taps
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


LOG2_E = tl.constexpr(1.4426950408889634)
VARYING = ["time", "inputs", "batch", "heads", "left"]


@triton.jit
def _at(x, b, t, h):
    """Where heads h of positions t of sentence b are."""
    return x.data + b * x.b + t.to(tl.int64) * x.t + h.to(tl.int64) * x.h


@triton.jit
def _load(x, b, t, h, there, c):
    """``[rows, channels c]``, zero where nothing is ``there``."""
    return tl.load(_at(x, b, t, h)[:, None] + c.to(tl.int64) * x.c, mask=there, other=0.0)


@triton.jit
def _store(x, b, t, h, there, c, values):
    at = _at(x, b, t, h)[:, None] + c.to(tl.int64) * x.c
    tl.store(at, values.to(x.data.dtype.element_ty), mask=there)


@triton.jit
def _columns(first, COUNT: tl.constexpr):
    return (first + tl.arange(0, COUNT))[None, :]


@triton.jit
def _load_tap(taps, b, t, h, present, tap, other):
    """``[rows, 1]``"""
    at = _at(taps, b, t, h) + tl.full([1], tap, tl.int64) * taps.c
    return tl.load(at, mask=present, other=other)[:, None]


@triton.jit
def _kernels_at(taps, b, t, h, present, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """Where the taps of rows are, and whether they are.

    ``[groups, rows, taps of a group]``: so laid out, a thread has several taps of few rows, which
    makes sums over a row's taps cheap.
    """
    WIDTH: tl.constexpr = min(PADDED, 8)
    group = tl.arange(0, PADDED // WIDTH)[:, None, None]
    k = group * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    at = _at(taps, b, t, h)[None, :, None] + k.to(tl.int64) * taps.c
    return at, present[None, :, None] & (k < TAPS)


@triton.jit
def _load_kernels(taps, b, t, h, present, other, TAPS: tl.constexpr, PADDED: tl.constexpr):
    at, inside = _kernels_at(taps, b, t, h, present, TAPS, PADDED)
    return tl.load(at, mask=inside, other=other)


@triton.jit
def _by_rows(kernels):
    """``[rows, PADDED]``"""
    GROUPS: tl.constexpr = kernels.shape[0]
    shape: tl.constexpr = [kernels.shape[1], GROUPS * kernels.shape[2]]
    return tl.reshape(tl.permute(kernels, (1, 0, 2)), shape)


@triton.jit
def _by_groups(rows):
    """The inverse of ``_by_rows``."""
    WIDTH: tl.constexpr = min(rows.shape[1], 8)
    shape: tl.constexpr = [rows.shape[0], rows.shape[1] // WIDTH, WIDTH]
    return tl.permute(tl.reshape(rows, shape), (1, 0, 2))


@triton.jit
def _sum_up(logits, lse, b, t, h, stored):
    """Each row's highest logit and sum of exponentials, whose binary logarithm is stored."""
    highest = tl.max(tl.max(logits, 0), 1)
    total = tl.sum(tl.sum(tl.exp2((logits - highest[None, :, None]) * LOG2_E), 0), 1)
    tl.store(_at(lse, b, t, h), highest * LOG2_E + tl.log2(total), mask=stored)
    return highest, total


@triton.jit
def _load_lse(lse, b, t, h, present):
    """What is not ``present`` gets no weight."""
    return tl.load(_at(lse, b, t, h), mask=present, other=float("inf"))


@triton.jit
def _load_softmax(taps, lse, b, t, h, present, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """The taps as they are or, with the logarithms of their sums, normalised."""
    if lse is None:
        return _load_kernels(taps, b, t, h, present, 0.0, TAPS, PADDED).to(tl.float32)
    else:
        logits = _load_kernels(taps, b, t, h, present, -float("inf"), TAPS, PADDED)
        sums = _load_lse(lse, b, t, h, present)
        return tl.exp2(logits.to(tl.float32) * LOG2_E - sums[None, :, None])


@triton.jit
def _drop(w, kept, b, t, h, present, scale, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """DropConnect, if any."""
    if kept is None:
        return w
    else:
        kept = _load_kernels(kept, b, t, h, present, 0, TAPS, PADDED)
        return tl.where(kept != 0, w * scale, 0.0)


@triton.jit
def _store_taps_grad(
    taps_grad, found, taps, kept, lse, b, t, h, present, first, h_first, heads, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Gradients of the taps as given, from ``[rows, PADDED]`` of those in effect."""
    PADDED: tl.constexpr = found.shape[1]
    found = tl.where(present[None, :, None], _by_groups(found), 0.0)
    found = _drop(found, kept, b, t, h, present, scale, TAPS, PADDED)
    if lse is not None:
        w = _load_softmax(taps, lse, b, t, h, present, TAPS, PADDED)
        found = w * (found - tl.sum(tl.sum(w * found, 0), 1)[None, :, None])
    if SHARED:
        found = tl.sum(tl.reshape(_by_rows(found), [ROWS, HEADS, PADDED]), 0)
        found = _by_groups(found)
        t, h = first // ROWS, h_first + tl.arange(0, HEADS)
        present = h < heads
    at, inside = _kernels_at(taps_grad, b, t, h, present, TAPS, PADDED)
    tl.store(at, found.to(taps_grad.data.dtype.element_ty), mask=inside)


@triton.jit
def _place(batch, heads, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """The sentence, first head and first position of this program."""
    groups = tl.cdiv(heads, HEADS)
    group = tl.program_id(0) % groups
    sentence = tl.program_id(0) // groups
    return (sentence % batch).to(tl.int64), group * HEADS, sentence // batch * ROWS


@triton.jit
def _turn(rows, by):
    """Rotates every row of ``[rows, PADDED]``: column k becomes column k - by."""
    PADDED: tl.constexpr = rows.shape[1]
    return tl.gather(rows, (_columns(0, PADDED) + by[:, None]) & (PADDED - 1), 1)


@triton.jit
def _in_band(values, tap, PADDED: tl.constexpr):
    """Zero where there is no such tap."""
    return tl.where(tap.to(tl.uint32) < PADDED, values, 0.0)


@triton.jit(do_not_specialize=VARYING)
def _forward_by_taps(
    x, taps, kept, lse, y, time, inputs, batch, heads, left, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    b, h_first, first = _place(batch, heads, ROWS, HEADS)
    row = tl.arange(0, ROWS * HEADS)
    t, h = first + row // HEADS, h_first + row % HEADS
    present = (t < time) & (h < heads)
    if lse is not None:
        logits = _load_kernels(taps, b, t, h, present, -float("inf"), TAPS, PADDED)
        stored = present & (t + b == 0) if SHARED else present
        highest, total = _sum_up(logits.to(tl.float32), lse, b, t, h, stored)
    for c_first in range(0, HEAD_DIM, CHANNELS):
        c = _columns(c_first, CHANNELS)
        y_rows = tl.zeros([ROWS * HEADS, CHANNELS], tl.float32)
        for tap in tl.static_range(TAPS):
            w = _load_tap(taps, b, t, h, present, tap, 0.0).to(tl.float32)
            if lse is not None:
                w = tl.exp2((w - highest[:, None]) * LOG2_E)
            if kept is not None:
                w = tl.where(_load_tap(kept, b, t, h, present, tap, 0) != 0, w * scale, 0.0)
            n = t + tap - left
            there = present & (n >= 0) & (n < inputs)
            x_rows = _load(x, b, n, h, there[:, None] & (c < HEAD_DIM), c)
            y_rows += w * x_rows.to(tl.float32)
        if lse is not None:
            y_rows /= total[:, None]
        _store(y, b, t, h, present[:, None] & (c < HEAD_DIM), c, y_rows)


@triton.jit(do_not_specialize=VARYING)
def _forward_by_bands(
    x, taps, kept, lse, y, time, inputs, batch, heads, left, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    b, h, first = _place(batch, heads, ROWS, 1)
    row = tl.arange(0, ROWS)
    t = first + row
    present = t < time
    if lse is not None:
        logits = _load_kernels(taps, b, t, h, present, -float("inf"), TAPS, PADDED)
        logits = logits.to(tl.float32)
        stored = present & (t + b == 0) if SHARED else present
        highest, total = _sum_up(logits, lse, b, t, h, stored)
        w = tl.exp2((logits - highest[None, :, None]) * LOG2_E) / total[None, :, None]
    else:
        w = _load_kernels(taps, b, t, h, present, 0.0, TAPS, PADDED).to(tl.float32)
    w = _by_rows(_drop(w, kept, b, t, h, present, scale, TAPS, PADDED))
    turned = _turn(w.to(x.data.dtype.element_ty), -row)
    for c_first in range(0, HEAD_DIM, CHANNELS):
        c = _columns(c_first, CHANNELS)
        y_rows = tl.zeros([ROWS, CHANNELS], tl.float32)
        for j_first in tl.static_range(0, ROWS + TAPS - 1, PADDED):
            j = j_first + tl.arange(0, PADDED)
            n = first - left + j
            there = (n >= 0) & (n < inputs) & (j < ROWS + TAPS - 1)
            x_rows = _load(x, b, n, h, there[:, None] & (c < HEAD_DIM), c)
            band = _in_band(turned, j[None, :] - row[:, None], PADDED)
            y_rows += tl.dot(band, x_rows, input_precision=PRECISION)
        _store(y, b, t, h, present[:, None] & (c < HEAD_DIM), c, y_rows)


@triton.jit(do_not_specialize=VARYING)
def _backward_by_taps(
    x, taps, kept, lse, grad, x_grad, taps_grad, time, inputs, batch, heads, left, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """For the same positions the gradients of the taps, as outputs, and of x, as inputs."""
    b, h_first, first = _place(batch, heads, ROWS, HEADS)
    row = tl.arange(0, ROWS * HEADS)
    t, h = first + row // HEADS, h_first + row % HEADS
    if taps_grad is not None and first < time:
        present = (t < time) & (h < heads)
        found = tl.zeros([ROWS * HEADS, PADDED], tl.float32)
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c = _columns(c_first, CHANNELS)
            grad_rows = _load(grad, b, t, h, present[:, None] & (c < HEAD_DIM), c).to(tl.float32)
            for tap in tl.static_range(TAPS):
                n = t + tap - left
                there = present & (n >= 0) & (n < inputs)
                x_rows = _load(x, b, n, h, there[:, None] & (c < HEAD_DIM), c)
                products = tl.sum(grad_rows * x_rows.to(tl.float32), 1)
                found += tl.where(_columns(0, PADDED) == tap, products[:, None], 0.0)
        _store_taps_grad(
            taps_grad, found, taps, kept, lse, b, t, h, present, first, h_first, heads, scale,
            SHARED, TAPS, ROWS, HEADS,
        )  # fmt: skip
    if x_grad is not None and first < inputs:
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c = _columns(c_first, CHANNELS)
            x_sums = tl.zeros([ROWS * HEADS, CHANNELS], tl.float32)
            for tap in tl.static_range(TAPS):
                i = t + left - tap
                present = (i >= 0) & (i < time) & (h < heads)
                w = _load_tap(taps, b, i, h, present, tap, 0.0).to(tl.float32)
                if lse is not None:
                    w = tl.exp2(w * LOG2_E - _load_lse(lse, b, i, h, present)[:, None])
                if kept is not None:
                    w = tl.where(_load_tap(kept, b, i, h, present, tap, 0) != 0, w * scale, 0.0)
                grad_rows = _load(grad, b, i, h, present[:, None] & (c < HEAD_DIM), c)
                x_sums += w * grad_rows.to(tl.float32)
            there = (t < inputs) & (h < heads)
            _store(x_grad, b, t, h, there[:, None] & (c < HEAD_DIM), c, x_sums)


@triton.jit(do_not_specialize=VARYING)
def _backward_by_bands(
    x, taps, kept, lse, grad, x_grad, taps_grad, time, inputs, batch, heads, left, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For the same positions the gradients of the taps, as outputs, and of x, as inputs."""
    b, h, first = _place(batch, heads, ROWS, 1)
    row = tl.arange(0, ROWS)
    t = first + row
    if taps_grad is not None and first < time:
        present = t < time
        found = tl.zeros([ROWS, PADDED], tl.float32)
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c = _columns(c_first, CHANNELS)
            grad_rows = _load(grad, b, t, h, present[:, None] & (c < HEAD_DIM), c)
            for j_first in tl.static_range(0, ROWS + TAPS - 1, PADDED):
                j = j_first + tl.arange(0, PADDED)
                n = first - left + j
                there = (n >= 0) & (n < inputs) & (j < ROWS + TAPS - 1)
                x_rows = _load(x, b, n, h, there[:, None] & (c < HEAD_DIM), c)
                products = tl.dot(grad_rows, tl.trans(x_rows), input_precision=PRECISION)
                found += _in_band(products, j[None, :] - row[:, None], PADDED)
        _store_taps_grad(
            taps_grad, _turn(found, row), taps, kept, lse, b, t, h, present, first, h, heads,
            scale, SHARED, TAPS, ROWS, 1,
        )  # fmt: skip
    if x_grad is not None and first < inputs:
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c = _columns(c_first, CHANNELS)
            x_sums = tl.zeros([ROWS, CHANNELS], tl.float32)
            for j_first in tl.static_range(0, ROWS + TAPS - 1, PADDED):
                j = j_first + tl.arange(0, PADDED)
                i = first + left - (TAPS - 1) + j
                present = (i >= 0) & (i < time) & (j < ROWS + TAPS - 1)
                w = _load_softmax(taps, lse, b, i, h, present, TAPS, PADDED)
                w = _by_rows(_drop(w, kept, b, i, h, present, scale, TAPS, PADDED))
                grad_rows = _load(grad, b, i, h, present[:, None] & (c < HEAD_DIM), c)
                tap = row[None, :] + (TAPS - 1) - j[:, None]
                turned = tl.gather(w.to(grad_rows.dtype), tap & (PADDED - 1), 1)
                band = tl.trans(_in_band(turned, tap, PADDED))
                x_sums += tl.dot(band, grad_rows, input_precision=PRECISION)
            there = (t < inputs)[:, None] & (c < HEAD_DIM)
            _store(x_grad, b, t, h, there, c, x_sums)


INTERPRETED = not isinstance(_forward_by_taps, triton.JITFunction)

for _key in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
    _operators.impl("convolve_triton", _forward, _key)
    _operators.impl("convolve_triton_backward", _backward, _key)
torch.library.register_fake("convattn::convolve_triton", _fake_forward)
torch.library.register_fake("convattn::convolve_triton_backward", _fake_backward)
torch.library.register_autograd("convattn::convolve_triton", _differentiate, setup_context=_save)
torch.library.register_autograd("convattn::convolve_triton_backward", _no_second_derivatives)
