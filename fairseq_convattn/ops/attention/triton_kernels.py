"""Composite attention in Triton kernels: scores and their relative terms exist only as tiles.

As in FlashAttention-2 (Dao 2023), softmax is computed online, and the backward pass computes
the weights again, once by queries and once by keys. The curve's gradient is sums over
diagonals: rows of a tile are rotated until its diagonals are columns, whose sums go to a row
per block of queries. No atomics, so that the same inputs give the same bits.
"""

import contextlib
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .scores import HIDDEN, Layout, Scores, decompose
from .terms import Terms

WIDEST = 256
ADDED = ("column", "band", "row_step", "column_step")  # to scores, where they are not None
LOG2_E = tl.constexpr(1.4426950408889634)
BLIND = tl.constexpr(HIDDEN / 2)  # a maximum below is that of a query that sees nothing
LOWEST = tl.constexpr(4 * HIDDEN)  # below every score, also one hidden twice; finite


class Blocks(NamedTuple):
    """Of queries and of keys, and how Triton is to compile a kernel for them.

    For the backward pass by queries, no more queries than keys.
    """

    queries: int
    keys: int
    warps: int
    stages: int


def unfit(q: Tensor, v: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if not q.is_cuda and isinstance(_forward, triton.JITFunction):
        return (
            "needs tensors on a GPU, or TRITON_INTERPRET=1 in the environment before Triton is "
            "imported"
        )
    if q.is_cuda and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or more"
    if not q.is_cuda and torch.bfloat16 in (q.dtype, v.dtype):
        return "needs a GPU for bfloat16, whose bits Triton's interpreter multiplies as integers"
    if torch.float64 in (q.dtype, v.dtype):
        return "computes in float32: give float32 or half precision"
    if max(q.size(3), v.size(3)) > WIDEST:
        return f"takes heads of at most {WIDEST}, not {max(q.size(3), v.size(3))}"
    return ""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    padding_mask: Tensor | None,
    *,
    causal: bool,
    beyond: str,
    span: int | None,
    dropout_p: float,
    scale: float,
) -> Tensor:
    """Same contract as :func:`reference.attend`; no second derivatives.

    Half precision is multiplied as such, and sums are float32. Products of float32 follow
    ``torch.set_float32_matmul_precision``.
    """
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    scores, layout = decompose(
        *(x.to(dtype) for x in (q, k, v)),
        terms,
        padding_mask,
        causal=causal,
        beyond=beyond,
        span=span,
        scale=scale,
        widen=False,
    )
    seed = int(torch.randint(2**62, ())) if dropout_p > 0 else 0
    return _TritonAttention.apply(layout, dropout_p, seed, *scores).to(v.dtype)


class _TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layout: Layout, dropout_p: float, seed: int, *tensors: Tensor | None):
        scores = Scores(*tensors)
        kernels = _Kernels(scores, layout, dropout_p, seed)
        y, lse = kernels.forward()
        ctx.options = layout, dropout_p, seed
        ctx.save_for_backward(*tensors, y, lse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        *tensors, y, lse = ctx.saved_tensors
        kernels = _Kernels(Scores(*tensors), *ctx.options)
        wanted = Scores(*ctx.needs_input_grad[3:])
        return None, None, None, *kernels.backward(y, lse, grad, wanted)


class _Kernels:
    """Launches the kernels on given scores."""

    def __init__(self, scores: Scores, layout: Layout, dropout_p: float, seed: int):
        self.scores = scores
        self.shape = scores.q.shape[:3]
        self.keys = scores.k.size(2)
        self.width, self.values = scores.q.size(3), scores.v.size(3)
        self.inputs = {
            **_strided("q", scores.q),
            **_strided("k", scores.k),
            **_strided("v", scores.v),
            "curve": scores.curve.contiguous(),
            "curve_h": scores.curve.size(1) if scores.curve.size(0) > 1 else 0,
        }
        for name in ADDED:
            x = getattr(scores, name)
            self.inputs[name] = None if x is None else x.contiguous()
        self.options = {
            "heads": self.shape[1],
            "queries": self.shape[2],
            "keys": self.keys,
            "offset": layout.offset,
            "left": layout.left,
            "right": layout.right,
            "reach": self.keys if layout.reach is None else layout.reach,
            "scale": layout.scale,
            "dropout_p": dropout_p,
            "seed": seed,
            "CAUSAL": layout.causal,
            "DROPOUT": dropout_p > 0,
            "WIDTH": self.width,
            "WIDTH_PADDED": _padded(self.width),
            "VALUES": self.values,
            "VALUES_PADDED": _padded(self.values),
            "PRECISION": _precision(scores.v.device),
        }

    def forward(self) -> tuple[Tensor, Tensor]:
        """Outputs, and the logarithms of the sums of exponentials, 0 where nothing is seen."""
        y = self.scores.v.new_empty(*self.shape, self.values)
        lse = torch.empty(self.shape, dtype=torch.float32, device=y.device)
        self._launch(_forward, _forward_blocks, "queries", y=y, lse=lse)
        return y, lse

    def backward(self, y: Tensor, lse: Tensor, grad: Tensor, wanted: Scores) -> Scores:
        """Gradients, None where not ``wanted``."""
        scores = self.scores
        blocks = _backward_blocks(max(self.width, self.values), grad.dtype)
        delta = torch.empty_like(lse)
        found = {name: _empty_like(getattr(scores, name)) for name in "qkv"}
        for name in ADDED:
            x = getattr(scores, name)
            found[name] = _empty_like(x) if getattr(wanted, name) else None
        if found["band"] is not None:
            found["band"].zero_()  # the kernel leaves out taps beyond the first and last key
        rows = triton.cdiv(self.shape[2], blocks.queries)
        diagonals = None
        if wanted.curve:
            shape = (*self.shape[:2], rows, self.keys + blocks.queries)
            diagonals = torch.zeros(shape, dtype=torch.float32, device=y.device)
        above = {**_strided("grad", grad), "lse": lse, "delta": delta}
        self._launch(
            _backward_by_queries,
            _backward_blocks,
            "queries",
            **above,
            y=y,
            q_grad=found["q"],
            band_grad=found["band"],
            row_step_grad=found["row_step"],
            diagonals=diagonals,
        )
        self._launch(
            _backward_by_keys,
            _backward_blocks,
            "keys",
            **above,
            k_grad=found["k"],
            v_grad=found["v"],
            column_step_grad=found["column_step"],
            column_grad=found["column"],
        )
        curve = None
        if wanted.curve:
            curve = _along_curve(diagonals, blocks.queries, self.shape[2], scores.curve)
        return Scores(curve=curve, **found)

    def _launch(self, kernel, choose_blocks, side: str, **arguments) -> None:
        """One program per block of ``side`` and head of a sentence."""
        blocks = choose_blocks(max(self.width, self.values), self.scores.v.dtype)
        length, block = {
            "queries": (self.shape[2], blocks.queries),
            "keys": (self.keys, blocks.keys),
        }[side]
        grid = (triton.cdiv(length, block) * self.shape[0] * self.shape[1],)
        with _on_device_of(self.scores.v):
            kernel[grid](
                **self.inputs,
                **arguments,
                **self.options,
                BLOCK_QUERIES=blocks.queries,
                BLOCK_KEYS=blocks.keys,
                num_warps=blocks.warps,
                num_stages=blocks.stages,
            )


def _forward_blocks(width: int, dtype: torch.dtype) -> Blocks:
    if dtype == torch.float32:
        return Blocks(64, 32, 4, 2) if width <= 64 else Blocks(32, 32, 4, 1)
    if width <= 64:
        return Blocks(64, 64, 4, 2)
    return Blocks(64, 64, 8, 1) if width <= 128 else Blocks(64, 32, 4, 1)


def _backward_blocks(width: int, dtype: torch.dtype) -> Blocks:
    if dtype == torch.float32:
        return Blocks(32, 32, 4, 1) if width <= 128 else Blocks(16, 16, 4, 1)
    if width <= 64:
        return Blocks(64, 64, 4, 2)
    return Blocks(64, 64, 8, 1) if width <= 128 else Blocks(32, 32, 4, 1)


def _precision(device: torch.device) -> str:
    """Triton's name for how float32 is multiplied; tf32x3 is as precise as float32."""
    if device.type != "cuda" or torch.version.hip:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _padded(width: int) -> int:
    """What tiles can be wide."""
    return max(16, triton.next_power_of_2(width))


def _strided(name: str, x: Tensor) -> dict[str, Tensor | int]:
    """``[batch, heads, time, width]`` as the kernels take it: rows' elements side by side."""
    x = x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous()
    return {name: x, f"{name}_b": x.stride(0), f"{name}_h": x.stride(1), f"{name}_t": x.stride(2)}


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _on_device_of(x: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def _along_curve(diagonals: Tensor, block: int, queries: int, curve: Tensor) -> Tensor:
    """Gradient of the curve, from the sums of ``_backward_by_queries``.

    Rows of ``diagonals`` are of blocks of queries from the last to the first, so that the same
    distance is a block further to the left in every next row.
    """
    sums = diagonals.sum(0)
    if curve.size(0) == 1:
        sums = sums.sum(0, keepdim=True)
    heads, rows, _ = sums.shape
    skewed = F.pad(sums, (0, rows * block)).flatten(1)[:, : -rows * block]
    sums = skewed.reshape(heads, rows, -1).sum(1)
    return sums[:, rows * block - queries :][:, : curve.size(1)]


VARYING = ["queries", "keys", "offset", "left", "right", "reach", "seed", "curve_h"]


@triton.jit
def _load_rows(x, stride, i, length, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """``[rows, PADDED]``, zero beyond ``length`` and ``WIDTH``."""
    c = tl.arange(0, PADDED)[None, :]
    at = x + i[:, None].to(tl.int64) * stride + c
    return tl.load(at, mask=(i[:, None] < length) & (c < WIDTH), other=0.0)


@triton.jit
def _store_rows(x, values, i, length, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Into ``[length, WIDTH]``, contiguous."""
    c = tl.arange(0, PADDED)[None, :]
    at = x + i[:, None].to(tl.int64) * WIDTH + c
    tl.store(at, values.to(x.dtype.element_ty), mask=(i[:, None] < length) & (c < WIDTH))


@triton.jit
def _position_scores(
    curve, column, band, row_step, column_step,
    head, t, j, queries, keys, offset, left, right,
):  # fmt: skip
    """What is added to the products of queries t and keys j; -inf where there are none."""
    inside = (t < queries)[:, None] & (j < keys)[None, :]
    from_curve = j[None, :] - t[:, None] + queries - 1
    s = tl.load(curve + from_curve, mask=inside, other=-float("inf"))
    r = j[None, :] - t[:, None] - offset
    if column is not None:
        s += tl.load(column + head * keys + j, mask=j < keys, other=0.0)[None, :]
    if band is not None:
        at, near = _in_band(band, head, t, r, inside, queries, left, right)
        s += tl.load(at, mask=near, other=0.0)
    if row_step is not None:
        step = tl.load(row_step + head * queries + t, mask=t < queries, other=0.0)
        s += tl.where(r > right, step[:, None], 0.0)
    if column_step is not None:
        step = tl.load(column_step + head * keys + j, mask=j < keys, other=0.0)
        s += tl.where(r > right, step[None, :], 0.0)
    return s


@triton.jit
def _in_band(band, head, t, r, inside, queries, left, right):
    """Where the band has the taps of queries t at distances r, and whether it does."""
    rows = band + (head * queries + t[:, None]) * (left + 1 + right)
    return rows + (r + left), inside & (r >= -left) & (r <= right)


@triton.jit
def _kept(head, t, j, keys, dropout_p, seed):
    """Which weights dropout keeps: a function of the seed and of the place."""
    return tl.rand(seed + head, t[:, None] * keys + j[None, :]) >= dropout_p


@triton.jit
def _keys_seen(t_first, block, queries, keys, offset, reach, CAUSAL: tl.constexpr):
    """The first key and the end of those that queries of a block see."""
    t_last = tl.minimum(t_first + block, queries) - 1
    first = tl.maximum(offset + t_first - reach, 0)
    end = tl.minimum(offset + t_last + reach + 1, keys)
    if CAUSAL:
        end = tl.minimum(end, offset + t_last + 1)
    return first, end


@triton.jit
def _weights_and_gradients(
    s, grad, v, lse, delta, head, t, j, keys, dropout_p, seed,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The weights as dropout leaves them, and the gradients of the scores."""
    weights = tl.exp2((s - lse[:, None]) * LOG2_E)
    dropped = weights
    above = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    if DROPOUT:
        kept = _kept(head, t, j, keys, dropout_p, seed)
        dropped = tl.where(kept, weights / (1 - dropout_p), 0.0)
        above = tl.where(kept, above / (1 - dropout_p), 0.0)
    return dropped, weights * (above - delta[:, None])


@triton.jit(do_not_specialize=VARYING)
def _forward(
    q, q_b, q_h, q_t, k, k_b, k_h, k_t, v, v_b, v_h, v_t,
    curve, curve_h, band, row_step, column_step, column, y, lse,
    heads, queries, keys, offset, left, right, reach, scale, dropout_p, seed,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(queries, BLOCK_QUERIES)
    head = (tl.program_id(0) // blocks).to(tl.int64)  # of all sentences
    b, h = head // heads, head % heads
    t_first = tl.program_id(0) % blocks * BLOCK_QUERIES
    t = t_first + tl.arange(0, BLOCK_QUERIES)
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    curve += h * curve_h
    if WIDTH > 0:
        q_rows = _load_rows(q + b * q_b + h * q_h, q_t, t, queries, WIDTH, WIDTH_PADDED)

    highest = tl.full([BLOCK_QUERIES], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    y_rows = tl.zeros([BLOCK_QUERIES, VALUES_PADDED], tl.float32)
    first, end = _keys_seen(t_first, BLOCK_QUERIES, queries, keys, offset, reach, CAUSAL)
    for j_first in range(first, end, BLOCK_KEYS):
        j = j_first + tl.arange(0, BLOCK_KEYS)
        s = _position_scores(
            curve, column, band, row_step, column_step,
            head, t, j, queries, keys, offset, left, right,
        )  # fmt: skip
        if WIDTH > 0:
            k_rows = _load_rows(k, k_t, j, keys, WIDTH, WIDTH_PADDED)
            s += scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        higher = tl.maximum(highest, tl.max(s, 1))
        weights = tl.exp2((s - higher[:, None]) * LOG2_E)
        shrunk = tl.exp2((highest - higher) * LOG2_E)
        total = total * shrunk + tl.sum(weights, 1)
        if DROPOUT:
            kept = _kept(head, t, j, keys, dropout_p, seed)
            weights = tl.where(kept, weights / (1 - dropout_p), 0.0)
        v_rows = _load_rows(v, v_t, j, keys, VALUES, VALUES_PADDED)
        y_rows = y_rows * shrunk[:, None] + tl.dot(
            weights.to(v_rows.dtype), v_rows, input_precision=PRECISION
        )
        highest = higher

    blind = highest < BLIND
    y_rows = tl.where(blind[:, None], 0.0, y_rows / tl.where(blind, 1.0, total)[:, None])
    sums = tl.where(blind, 0.0, highest + tl.log2(tl.where(blind, 1.0, total)) / LOG2_E)
    tl.store(lse + head * queries + t, sums, mask=t < queries)
    _store_rows(y + head * queries * VALUES, y_rows, t, queries, VALUES, VALUES_PADDED)


@triton.jit(do_not_specialize=VARYING)
def _backward_by_queries(
    q, q_b, q_h, q_t, k, k_b, k_h, k_t, v, v_b, v_h, v_t,
    curve, curve_h, band, row_step, column_step, column,
    grad, grad_b, grad_h, grad_t, lse, delta,
    y, q_grad, band_grad, row_step_grad, diagonals,
    heads, queries, keys, offset, left, right, reach, scale, dropout_p, seed,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Also stores ``delta``, the sum of a row's weights times their gradients."""
    blocks = tl.cdiv(queries, BLOCK_QUERIES)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    block = tl.program_id(0) % blocks
    t_first = block * BLOCK_QUERIES
    i = tl.arange(0, BLOCK_QUERIES)
    t = t_first + i
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    curve += h * curve_h
    if WIDTH > 0:
        q_rows = _load_rows(q + b * q_b + h * q_h, q_t, t, queries, WIDTH, WIDTH_PADDED)
        q_sums = tl.zeros([BLOCK_QUERIES, WIDTH_PADDED], tl.float32)
    grad += b * grad_b + h * grad_h
    grad_rows = _load_rows(grad, grad_t, t, queries, VALUES, VALUES_PADDED)
    y += head * queries * VALUES
    y_rows = _load_rows(y, VALUES, t, queries, VALUES, VALUES_PADDED)
    delta_rows = tl.sum(grad_rows.to(tl.float32) * y_rows.to(tl.float32), 1)
    tl.store(delta + head * queries + t, delta_rows, mask=t < queries)
    lse_rows = tl.load(lse + head * queries + t, mask=t < queries, other=0.0)

    row_sums = tl.zeros([BLOCK_QUERIES], tl.float32)
    c = tl.arange(0, BLOCK_KEYS)
    width = keys + BLOCK_QUERIES
    if diagonals is not None:
        diagonals += (head * blocks + blocks - 1 - block) * width
    begun = tl.zeros([BLOCK_KEYS], tl.float32)  # diagonals that the next tile goes on with
    first, end = _keys_seen(t_first, BLOCK_QUERIES, queries, keys, offset, reach, CAUSAL)
    for j_first in range(first, end, BLOCK_KEYS):
        j = j_first + c
        s = _position_scores(
            curve, column, band, row_step, column_step,
            head, t, j, queries, keys, offset, left, right,
        )  # fmt: skip
        if WIDTH > 0:
            k_rows = _load_rows(k, k_t, j, keys, WIDTH, WIDTH_PADDED)
            s += scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        v_rows = _load_rows(v, v_t, j, keys, VALUES, VALUES_PADDED)
        _, s_grad = _weights_and_gradients(
            s, grad_rows, v_rows, lse_rows, delta_rows,
            head, t, j, keys, dropout_p, seed, DROPOUT, PRECISION,
        )  # fmt: skip
        if WIDTH > 0:
            q_sums += tl.dot(s_grad.to(k_rows.dtype), k_rows, input_precision=PRECISION)
        r = j[None, :] - t[:, None] - offset
        if band_grad is not None:
            inside = (t < queries)[:, None] & (j < keys)[None, :]
            at, near = _in_band(band_grad, head, t, r, inside, queries, left, right)
            tl.store(at, s_grad, mask=near)
        if row_step_grad is not None:
            row_sums += tl.sum(tl.where(r > right, s_grad, 0.0), 1)
        if diagonals is not None:
            turned = c[None, :] + i[:, None]
            rotated = tl.gather(s_grad, turned % BLOCK_KEYS, 1)
            ended = begun + tl.sum(tl.where(turned < BLOCK_KEYS, 0.0, rotated), 0)
            begun = tl.sum(tl.where(turned < BLOCK_KEYS, rotated, 0.0), 0)
            at = j - BLOCK_KEYS + BLOCK_QUERIES - 1
            tl.store(diagonals + at, ended, mask=(at >= 0) & (at < width))

    if diagonals is not None:
        at = first + tl.cdiv(end - first, BLOCK_KEYS) * BLOCK_KEYS + c
        at += BLOCK_QUERIES - 1 - BLOCK_KEYS
        tl.store(diagonals + at, begun, mask=(at >= 0) & (at < width))
    if WIDTH > 0:
        q_grad += head * queries * WIDTH
        _store_rows(q_grad, scale * q_sums, t, queries, WIDTH, WIDTH_PADDED)
    if row_step_grad is not None:
        tl.store(row_step_grad + head * queries + t, row_sums, mask=t < queries)


@triton.jit(do_not_specialize=VARYING)
def _backward_by_keys(
    q, q_b, q_h, q_t, k, k_b, k_h, k_t, v, v_b, v_h, v_t,
    curve, curve_h, band, row_step, column_step, column,
    grad, grad_b, grad_h, grad_t, lse, delta,
    k_grad, v_grad, column_step_grad, column_grad,
    heads, queries, keys, offset, left, right, reach, scale, dropout_p, seed,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(keys, BLOCK_KEYS)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = head // heads, head % heads
    j_first = tl.program_id(0) % blocks * BLOCK_KEYS
    j = j_first + tl.arange(0, BLOCK_KEYS)
    q += b * q_b + h * q_h
    grad += b * grad_b + h * grad_h
    curve += h * curve_h
    if WIDTH > 0:
        k_rows = _load_rows(k + b * k_b + h * k_h, k_t, j, keys, WIDTH, WIDTH_PADDED)
        k_sums = tl.zeros([BLOCK_KEYS, WIDTH_PADDED], tl.float32)
    v_rows = _load_rows(v + b * v_b + h * v_h, v_t, j, keys, VALUES, VALUES_PADDED)
    v_sums = tl.zeros([BLOCK_KEYS, VALUES_PADDED], tl.float32)
    column_sums = tl.zeros([BLOCK_KEYS], tl.float32)
    step_sums = tl.zeros([BLOCK_KEYS], tl.float32)

    first = tl.maximum(j_first - offset - reach, 0)
    if CAUSAL:
        first = tl.maximum(first, j_first - offset)
    end = tl.minimum(tl.minimum(j_first + BLOCK_KEYS, keys) - offset + reach, queries)
    for t_first in range(first, end, BLOCK_QUERIES):
        t = t_first + tl.arange(0, BLOCK_QUERIES)
        s = _position_scores(
            curve, column, band, row_step, column_step,
            head, t, j, queries, keys, offset, left, right,
        )  # fmt: skip
        if WIDTH > 0:
            q_rows = _load_rows(q, q_t, t, queries, WIDTH, WIDTH_PADDED)
            s += scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        grad_rows = _load_rows(grad, grad_t, t, queries, VALUES, VALUES_PADDED)
        lse_rows = tl.load(lse + head * queries + t, mask=t < queries, other=0.0)
        delta_rows = tl.load(delta + head * queries + t, mask=t < queries, other=0.0)
        weights, s_grad = _weights_and_gradients(
            s, grad_rows, v_rows, lse_rows, delta_rows,
            head, t, j, keys, dropout_p, seed, DROPOUT, PRECISION,
        )  # fmt: skip
        weights = tl.trans(weights.to(grad_rows.dtype))
        v_sums += tl.dot(weights, grad_rows, input_precision=PRECISION)
        if WIDTH > 0:
            k_sums += tl.dot(tl.trans(s_grad.to(q_rows.dtype)), q_rows, input_precision=PRECISION)
        if column_grad is not None:
            column_sums += tl.sum(s_grad, 0)
        if column_step_grad is not None:
            r = j[None, :] - t[:, None] - offset
            step_sums += tl.sum(tl.where(r > right, s_grad, 0.0), 0)

    _store_rows(v_grad + head * keys * VALUES, v_sums, j, keys, VALUES, VALUES_PADDED)
    if WIDTH > 0:
        k_grad += head * keys * WIDTH
        _store_rows(k_grad, scale * k_sums, j, keys, WIDTH, WIDTH_PADDED)
    if column_grad is not None:
        tl.store(column_grad + head * keys + j, column_sums, mask=j < keys)
    if column_step_grad is not None:
        tl.store(column_step_grad + head * keys + j, step_sums, mask=j < keys)
