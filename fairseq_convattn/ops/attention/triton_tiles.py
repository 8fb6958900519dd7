"""Composite attention in Triton: scores and their relative terms exist only as tiles.

As in FlashAttention-2 (Dao 2023), softmax is computed online, and the backward pass computes
the weights again, once by queries and once by keys. The curve's gradient is sums over
diagonals: rows of a tile are rotated until its diagonals are columns, whose sums go to a row
per block of queries. No atomics, so that the same inputs give the same bits.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..triton_tensors import LOG2_E, load, store
from .scores import HIDDEN

BLIND = tl.constexpr(HIDDEN / 2)  # a maximum below is that of a query that sees nothing
LOWEST = tl.constexpr(4 * HIDDEN)  # below every score, also one hidden twice; finite

VARYING = ["queries", "keys", "left", "right", "reach", "threshold", "curve_h"]


class Added(NamedTuple):
    """What is added to the products, each contiguous, or their gradients; see :class:`Scores`."""

    curve: Tensor | None
    column: Tensor | None
    band: Tensor | None
    row_step: Tensor | None
    column_step: Tensor | None


@triton.jit
def _place(heads, length, BLOCK: tl.constexpr):
    """Of this program the sentence, its head, the head among those of all sentences, and the
    first of its positions."""
    blocks = tl.cdiv(length, BLOCK)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    return head // heads, head % heads, head, tl.program_id(0) % blocks * BLOCK


@triton.jit
def _load_rows(x, b, h, i, length, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """``[rows, PADDED]``, zero beyond ``length`` and ``WIDTH``."""
    c = tl.arange(0, PADDED)[None, :]
    return load(x, b, i, h, (i[:, None] < length) & (c < WIDTH), c)


@triton.jit
def _store_rows(x, b, h, i, length, WIDTH: tl.constexpr, values):
    c = tl.arange(0, values.shape[1])[None, :]
    store(x, b, i, h, (i[:, None] < length) & (c < WIDTH), c, values)


@triton.jit
def _touches_band(t, j, queries, keys, left, right, BLOCK_QUERIES, BLOCK_KEYS):
    """Whether the band has taps of a block of queries from t on and of keys from j on."""
    r = j - t - (keys - queries)
    return (r + BLOCK_KEYS > -left) & (r - BLOCK_QUERIES < right)


@triton.jit
def _position_scores(added, curve, head, t, j, near_band, queries, keys, left, right):
    """What is added to the products of queries t and keys j; -inf where there are none."""
    inside = (t < queries)[:, None] & (j < keys)[None, :]
    from_curve = j[None, :] - t[:, None] + queries - 1
    s = tl.load(curve + from_curve, mask=inside, other=-float("inf"))
    r = j[None, :] - t[:, None] - (keys - queries)
    if added.column is not None:
        s += tl.load(added.column + head * keys + j, mask=j < keys, other=0.0)[None, :]
    if added.band is not None:
        if near_band:
            at, near = _in_band(added.band, head, t, r, inside, queries, left, right)
            s += tl.load(at, mask=near, other=0.0)
    if added.row_step is not None:
        step = tl.load(added.row_step + head * queries + t, mask=t < queries, other=0.0)
        s += tl.where(r > right, step[:, None], 0.0)
    if added.column_step is not None:
        step = tl.load(added.column_step + head * keys + j, mask=j < keys, other=0.0)
        s += tl.where(r > right, step[None, :], 0.0)
    return s


@triton.jit
def _in_band(band, head, t, r, inside, queries, left, right):
    """Where the band has the taps of queries t at distances r, and whether it does."""
    rows = band + (head * queries + t[:, None]) * (left + 1 + right)
    return rows + (r + left), inside & (r >= -left) & (r <= right)


@triton.jit
def _hash(x, key):
    """That of ``dropout.py``, of uint32."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) ^ key
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def _kept(head, t, j, queries, threshold, seed):
    """Which weights dropout keeps, as :meth:`Dropout.factors` has them: those whose hash is below
    the threshold."""
    row = (head * queries + t).to(tl.uint32)
    seed = tl.load(seed)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    first = _hash(_hash(row ^ low, 0) ^ high, 0)
    second = _hash(_hash(row ^ high, 0) ^ low, 0)
    drawn = _hash(first[:, None] + j.to(tl.uint32)[None, :], second[:, None])
    return (drawn >> 1).to(tl.int32) < threshold


@triton.jit
def _keys_seen(t_first, block, queries, keys, reach, CAUSAL: tl.constexpr):
    """The first key and the end of those that queries of a block see."""
    offset = keys - queries
    t_last = tl.minimum(t_first + block, queries) - 1
    first = tl.maximum(offset + t_first - reach, 0)
    end = tl.minimum(offset + t_last + reach + 1, keys)
    if CAUSAL:
        end = tl.minimum(end, offset + t_last + 1)
    return first, end


@triton.jit
def _weights_and_gradients(
    s, grad, v, lse, delta, head, t, j, queries, threshold, rescale, seed,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The weights as dropout leaves them, and the gradients of the scores."""
    weights = tl.exp2((s - lse[:, None]) * LOG2_E)
    dropped = weights
    above = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    if DROPOUT:
        kept = _kept(head, t, j, queries, threshold, seed)
        dropped = tl.where(kept, weights * rescale, 0.0)
        above = tl.where(kept, above * rescale, 0.0)
    return dropped, weights * (above - delta[:, None])


@triton.jit(do_not_specialize=VARYING)
def forward_by_queries(
    q, k, v, added, curve_h, y, lse,
    heads, queries, keys, left, right, reach, scale, threshold, rescale, seed,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    b, h, head, t_first = _place(heads, queries, BLOCK_QUERIES)
    t = t_first + tl.arange(0, BLOCK_QUERIES)
    curve = added.curve + h * curve_h
    if WIDTH > 0:
        q_rows = _load_rows(q, b, h, t, queries, WIDTH, WIDTH_PADDED)

    highest = tl.full([BLOCK_QUERIES], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    y_rows = tl.zeros([BLOCK_QUERIES, VALUES_PADDED], tl.float32)
    first, end = _keys_seen(t_first, BLOCK_QUERIES, queries, keys, reach, CAUSAL)
    for j_first in range(first, end, BLOCK_KEYS):
        j = j_first + tl.arange(0, BLOCK_KEYS)
        near_band = _touches_band(
            t_first, j_first, queries, keys, left, right, BLOCK_QUERIES, BLOCK_KEYS
        )
        s = _position_scores(added, curve, head, t, j, near_band, queries, keys, left, right)
        if WIDTH > 0:
            k_rows = _load_rows(k, b, h, j, keys, WIDTH, WIDTH_PADDED)
            s += scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        higher = tl.maximum(highest, tl.max(s, 1))
        weights = tl.exp2((s - higher[:, None]) * LOG2_E)
        shrunk = tl.exp2((highest - higher) * LOG2_E)
        total = total * shrunk + tl.sum(weights, 1)
        if DROPOUT:
            kept = _kept(head, t, j, queries, threshold, seed)
            weights = tl.where(kept, weights * rescale, 0.0)
        v_rows = _load_rows(v, b, h, j, keys, VALUES, VALUES_PADDED)
        y_rows = y_rows * shrunk[:, None] + tl.dot(
            weights.to(v_rows.dtype), v_rows, input_precision=PRECISION
        )
        highest = higher

    blind = (highest < BLIND) & (total == total)  # a maximum leaves out what is not a number
    y_rows = tl.where(blind[:, None], 0.0, y_rows / tl.where(blind, 1.0, total)[:, None])
    sums = tl.where(blind, 0.0, highest + tl.log2(tl.where(blind, 1.0, total)) / LOG2_E)
    tl.store(lse + head * queries + t, sums, mask=t < queries)
    _store_rows(y, b, h, t, queries, VALUES, y_rows)


@triton.jit(do_not_specialize=VARYING)
def backward_by_queries(
    q, k, v, added, curve_h, grad, lse, delta, y, q_grad, added_grad, diagonals,
    heads, queries, keys, left, right, reach, scale, threshold, rescale, seed,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Also stores ``delta``, the sum of a row's weights times their gradients."""
    b, h, head, t_first = _place(heads, queries, BLOCK_QUERIES)
    i = tl.arange(0, BLOCK_QUERIES)
    t = t_first + i
    curve = added.curve + h * curve_h
    if WIDTH > 0:
        q_rows = _load_rows(q, b, h, t, queries, WIDTH, WIDTH_PADDED)
        q_sums = tl.zeros([BLOCK_QUERIES, WIDTH_PADDED], tl.float32)
    grad_rows = _load_rows(grad, b, h, t, queries, VALUES, VALUES_PADDED)
    y_rows = _load_rows(y, b, h, t, queries, VALUES, VALUES_PADDED)
    delta_rows = tl.sum(grad_rows.to(tl.float32) * y_rows.to(tl.float32), 1)
    tl.store(delta + head * queries + t, delta_rows, mask=t < queries)
    lse_rows = tl.load(lse + head * queries + t, mask=t < queries, other=0.0)

    row_sums = tl.zeros([BLOCK_QUERIES], tl.float32)
    c = tl.arange(0, BLOCK_KEYS)
    width = keys + BLOCK_QUERIES
    if diagonals is not None:
        blocks = tl.cdiv(queries, BLOCK_QUERIES)
        diagonals += (head * blocks + blocks - 1 - t_first // BLOCK_QUERIES) * width
    # a diagonal crosses two tiles, or three with more queries than keys
    OLDEST: tl.constexpr = (BLOCK_QUERIES + BLOCK_KEYS - 1) // BLOCK_KEYS
    begun = tl.zeros([BLOCK_KEYS], tl.float32)  # diagonals that the next tile goes on with
    older = tl.zeros([BLOCK_KEYS], tl.float32)  # those that it is the last one of three for
    first, end = _keys_seen(t_first, BLOCK_QUERIES, queries, keys, reach, CAUSAL)
    for j_first in range(first, end, BLOCK_KEYS):
        j = j_first + c
        near_band = _touches_band(
            t_first, j_first, queries, keys, left, right, BLOCK_QUERIES, BLOCK_KEYS
        )
        s = _position_scores(added, curve, head, t, j, near_band, queries, keys, left, right)
        if WIDTH > 0:
            k_rows = _load_rows(k, b, h, j, keys, WIDTH, WIDTH_PADDED)
            s += scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        v_rows = _load_rows(v, b, h, j, keys, VALUES, VALUES_PADDED)
        _, s_grad = _weights_and_gradients(
            s, grad_rows, v_rows, lse_rows, delta_rows,
            head, t, j, queries, threshold, rescale, seed, DROPOUT, PRECISION,
        )  # fmt: skip
        if WIDTH > 0:
            q_sums += tl.dot(s_grad.to(k_rows.dtype), k_rows, input_precision=PRECISION)
        r = j[None, :] - t[:, None] - (keys - queries)
        if added_grad.band is not None and near_band:
            inside = (t < queries)[:, None] & (j < keys)[None, :]
            at, near = _in_band(added_grad.band, head, t, r, inside, queries, left, right)
            tl.store(at, s_grad, mask=near)
        if added_grad.row_step is not None:
            row_sums += tl.sum(tl.where(r > right, s_grad, 0.0), 1)
        if diagonals is not None:
            turned = c[None, :] + i[:, None]
            rotated = tl.gather(s_grad, turned % BLOCK_KEYS, 1)
            ended = tl.sum(tl.where(turned < OLDEST * BLOCK_KEYS, 0.0, rotated), 0)
            if OLDEST == 1:
                ended += begun
            else:
                ended += older
                second = (turned >= BLOCK_KEYS) & (turned < 2 * BLOCK_KEYS)
                older = begun + tl.sum(tl.where(second, rotated, 0.0), 0)
            begun = tl.sum(tl.where(turned < BLOCK_KEYS, rotated, 0.0), 0)
            at = j - OLDEST * BLOCK_KEYS + BLOCK_QUERIES - 1
            tl.store(diagonals + at, ended, mask=(at >= 0) & (at < width))

    if diagonals is not None:
        at = first + tl.cdiv(end - first, BLOCK_KEYS) * BLOCK_KEYS + c
        at += BLOCK_QUERIES - 1 - BLOCK_KEYS
        tl.store(diagonals + at, begun, mask=(at >= 0) & (at < width))
        if OLDEST > 1:
            at -= BLOCK_KEYS
            tl.store(diagonals + at, older, mask=(at >= 0) & (at < width))
    if WIDTH > 0:
        _store_rows(q_grad, b, h, t, queries, WIDTH, scale * q_sums)
    if added_grad.row_step is not None:
        tl.store(added_grad.row_step + head * queries + t, row_sums, mask=t < queries)


@triton.jit(do_not_specialize=VARYING)
def backward_by_keys(
    q, k, v, added, curve_h, grad, lse, delta, k_grad, v_grad, added_grad,
    heads, queries, keys, left, right, reach, scale, threshold, rescale, seed,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    b, h, head, j_first = _place(heads, keys, BLOCK_KEYS)
    j = j_first + tl.arange(0, BLOCK_KEYS)
    curve = added.curve + h * curve_h
    offset = keys - queries
    if WIDTH > 0:
        k_rows = _load_rows(k, b, h, j, keys, WIDTH, WIDTH_PADDED)
        k_sums = tl.zeros([BLOCK_KEYS, WIDTH_PADDED], tl.float32)
    v_rows = _load_rows(v, b, h, j, keys, VALUES, VALUES_PADDED)
    v_sums = tl.zeros([BLOCK_KEYS, VALUES_PADDED], tl.float32)
    column_sums = tl.zeros([BLOCK_KEYS], tl.float32)
    step_sums = tl.zeros([BLOCK_KEYS], tl.float32)

    first = tl.maximum(j_first - offset - reach, 0)
    if CAUSAL:
        first = tl.maximum(first, j_first - offset)
    end = tl.minimum(tl.minimum(j_first + BLOCK_KEYS, keys) - offset + reach, queries)
    for t_first in range(first, end, BLOCK_QUERIES):
        t = t_first + tl.arange(0, BLOCK_QUERIES)
        near_band = _touches_band(
            t_first, j_first, queries, keys, left, right, BLOCK_QUERIES, BLOCK_KEYS
        )
        s = _position_scores(added, curve, head, t, j, near_band, queries, keys, left, right)
        if WIDTH > 0:
            q_rows = _load_rows(q, b, h, t, queries, WIDTH, WIDTH_PADDED)
            s += scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
        grad_rows = _load_rows(grad, b, h, t, queries, VALUES, VALUES_PADDED)
        lse_rows = tl.load(lse + head * queries + t, mask=t < queries, other=0.0)
        delta_rows = tl.load(delta + head * queries + t, mask=t < queries, other=0.0)
        weights, s_grad = _weights_and_gradients(
            s, grad_rows, v_rows, lse_rows, delta_rows,
            head, t, j, queries, threshold, rescale, seed, DROPOUT, PRECISION,
        )  # fmt: skip
        weights = tl.trans(weights.to(grad_rows.dtype))
        v_sums += tl.dot(weights, grad_rows, input_precision=PRECISION)
        if WIDTH > 0:
            k_sums += tl.dot(tl.trans(s_grad.to(q_rows.dtype)), q_rows, input_precision=PRECISION)
        if added_grad.column is not None:
            column_sums += tl.sum(s_grad, 0)
        if added_grad.column_step is not None:
            r = j[None, :] - t[:, None] - offset
            step_sums += tl.sum(tl.where(r > right, s_grad, 0.0), 0)

    _store_rows(v_grad, b, h, j, keys, VALUES, v_sums)
    if WIDTH > 0:
        _store_rows(k_grad, b, h, j, keys, WIDTH, scale * k_sums)
    if added_grad.column is not None:
        tl.store(added_grad.column + head * keys + j, column_sums, mask=j < keys)
    if added_grad.column_step is not None:
        tl.store(added_grad.column_step + head * keys + j, step_sums, mask=j < keys)
