"""Composite attention in Triton: scores and their relative terms exist only as tiles.

As in FlashAttention-2 (Dao 2023), softmax is computed online, and the backward pass computes
the weights again, once by queries and once by keys. The curve's gradient is sums over
diagonals: rows of a tile are rotated until its diagonals are columns, whose sums go to a row
per block of queries. No atomics, so that the same inputs give the same bits.
"""

import triton
import triton.language as tl

from .scores import HIDDEN

LOG2_E = tl.constexpr(1.4426950408889634)
BLIND = tl.constexpr(HIDDEN / 2)  # a maximum below is that of a query that sees nothing
LOWEST = tl.constexpr(4 * HIDDEN)  # below every score, also one hidden twice; finite

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
def forward_by_queries(
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
def backward_by_queries(
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
def backward_by_keys(
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
