"""Composite attention in Triton: scores and their relative terms exist only as tiles.

As in FlashAttention-2 (Dao 2023), softmax is computed online, and the backward pass computes
the weights again, once by queries and once by keys. The curve's gradient is sums over
diagonals: rows of a tile are rotated until its diagonals are columns, whose sums go to a row
per block of queries. No atomics, so that the same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_tensors import LOG2_E
from .scores import HIDDEN
from .triton_scores import (
    AFTER,
    BEFORE,
    CLOSE,
    Program,
    in_band,
    kept_by_dropout,
    keys_seen,
    load_rows,
    position_scores,
    program_place,
    queries_seeing,
    store_rows,
    touches_band,
    weights_and_gradients,
)

BLIND = tl.constexpr(HIDDEN / 2)  # a maximum below is that of a query that sees nothing
LOWEST = tl.constexpr(4 * HIDDEN)  # below every score, also one hidden twice; finite

VARYING = [
    *("queries", "keys", "left", "right", "reach", "threshold", "curve_h", "before", "after"),
    "distances",
]


@triton.jit
def _attend_to_tile(
    p, highest, total, y_rows, q_rows, k, v, t_first, j_first,
    PART: tl.constexpr, FLAT: tl.constexpr, CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """The highest scores, the sums of exponentials and of values so far, with one more tile."""
    j = j_first + tl.arange(0, BLOCK_KEYS)
    s = position_scores(p, t_first, j_first, PART, FLAT, CAUSAL, BLOCK_QUERIES, BLOCK_KEYS)
    if WIDTH > 0:
        k_rows = load_rows(k, p.b, p.h, j, p.keys, WIDTH, WIDTH_PADDED)
        s += p.scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
    higher = tl.maximum(highest, tl.max(s, 1))
    base = tl.where(higher < BLIND, 0.0, higher * LOG2_E)  # times LOG2_E it is not exact
    weights = tl.exp2(s * LOG2_E - base[:, None])
    shrunk = tl.exp2((highest - higher) * LOG2_E)
    total = total * shrunk + tl.sum(weights, 1)
    if p.seed is not None:
        t = t_first + tl.arange(0, BLOCK_QUERIES)
        kept = kept_by_dropout(p.head, t, j, p.queries, p.threshold, p.seed)
        weights = tl.where(kept, weights * p.rescale, 0.0)
    v_rows = load_rows(v, p.b, p.h, j, p.keys, VALUES, VALUES_PADDED)
    weighted = tl.dot(weights.to(v_rows.dtype), v_rows, input_precision=PRECISION)
    return higher, total, y_rows * shrunk[:, None] + weighted


@triton.jit(do_not_specialize=VARYING)
def forward_by_queries(
    q, k, v, added, curve_h, y, lse,
    heads, queries, keys, left, right, reach, before, after, scale, threshold, rescale, seed,
    FLAT: tl.constexpr, CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    b, h, head, t_first = program_place(heads, queries, BLOCK_QUERIES)
    t = t_first + tl.arange(0, BLOCK_QUERIES)
    p = Program(
        b, h, head, added, added.curve + h * curve_h, queries, keys, left, right, before, after,
        scale, threshold, rescale, seed,
    )  # fmt: skip
    q_rows = None
    if WIDTH > 0:
        q_rows = load_rows(q, b, h, t, queries, WIDTH, WIDTH_PADDED)

    highest = tl.full([BLOCK_QUERIES], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    y_rows = tl.zeros([BLOCK_QUERIES, VALUES_PADDED], tl.float32)
    seen = keys_seen(
        t_first, queries, keys, reach, before, after, CAUSAL, BLOCK_QUERIES, BLOCK_KEYS
    )
    for PART in tl.static_range(BEFORE, CLOSE + 1 if CAUSAL else AFTER + 1):
        for j_first in range(seen[PART], seen[PART + 1], BLOCK_KEYS):
            highest, total, y_rows = _attend_to_tile(
                p, highest, total, y_rows, q_rows, k, v, t_first, j_first, PART, FLAT, CAUSAL,
                WIDTH, WIDTH_PADDED, VALUES, VALUES_PADDED, PRECISION, BLOCK_QUERIES, BLOCK_KEYS,
            )  # fmt: skip

    blind = (highest < BLIND) & (total == total)  # a maximum leaves out what is not a number
    y_rows = tl.where(blind[:, None], 0.0, y_rows / tl.where(blind, 1.0, total)[:, None])
    sums = tl.where(blind, 0.0, highest + tl.log2(tl.where(blind, 1.0, total)) / LOG2_E)
    tl.store(lse + head * queries + t, sums, mask=t < queries)
    store_rows(y, b, h, t, queries, VALUES, y_rows)


@triton.jit
def _gradients_of_tile(
    p, q_rows, grad_rows, lse_rows, delta_rows, k_rows, v_rows, t_first, j_first,
    PART: tl.constexpr, FLAT: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """The tile's weights as dropout leaves them, and the gradients of its scores."""
    t, j = t_first + tl.arange(0, BLOCK_QUERIES), j_first + tl.arange(0, BLOCK_KEYS)
    s = position_scores(p, t_first, j_first, PART, FLAT, CAUSAL, BLOCK_QUERIES, BLOCK_KEYS)
    if WIDTH > 0:
        s += p.scale * tl.dot(q_rows, tl.trans(k_rows), input_precision=PRECISION)
    return weights_and_gradients(p, s, grad_rows, v_rows, lse_rows, delta_rows, t, j, PRECISION)


@triton.jit
def _flat_tile_by_queries(
    p, q_sums, row_sums, flat_sums, q_rows, grad_rows, lse_rows, delta_rows, k, v, added_grad,
    diagonals, t_first, j_first,
    PART: tl.constexpr, FLAT: tl.constexpr, CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """The sums so far of the queries' gradients, of their steps' and of this end's of the curve,
    with one more tile."""
    j = j_first + tl.arange(0, BLOCK_KEYS)
    k_rows = None
    if WIDTH > 0:
        k_rows = load_rows(k, p.b, p.h, j, p.keys, WIDTH, WIDTH_PADDED)
    v_rows = load_rows(v, p.b, p.h, j, p.keys, VALUES, VALUES_PADDED)
    _, s_grad = _gradients_of_tile(
        p, q_rows, grad_rows, lse_rows, delta_rows, k_rows, v_rows, t_first, j_first,
        PART, FLAT, CAUSAL, WIDTH, PRECISION, BLOCK_QUERIES, BLOCK_KEYS,
    )  # fmt: skip
    if WIDTH > 0:
        q_sums += tl.dot(s_grad.to(k_rows.dtype), k_rows, input_precision=PRECISION)
    if PART == AFTER and added_grad.row_step is not None:
        row_sums += tl.sum(s_grad, 1)
    if diagonals is not None:
        flat_sums += tl.sum(s_grad, 1)
    return q_sums, row_sums, flat_sums


@triton.jit
def _store_ended(diagonals, distances, place, older, begun, rotated, turned, OLDEST: tl.constexpr):
    """Store the sums of the diagonals that end in a tile, the first at ``place``, from it and
    those before, all rotated."""
    KEYS: tl.constexpr = rotated.shape[1]
    at = place + tl.arange(0, KEYS)
    inside = (at > 0) & (at < distances)
    if OLDEST == 1:
        ended = tl.where(turned < KEYS, begun, rotated)
    else:
        later = tl.where(turned < 2 * KEYS, begun, rotated)
        ended = tl.where(turned < KEYS, older, later)
    tl.store(diagonals + at, tl.sum(ended, 0), mask=inside)


@triton.jit(do_not_specialize=VARYING)
def backward_by_queries(
    q, k, v, added, curve_h, grad, lse, delta, y, q_grad, added_grad, diagonals, distances,
    heads, queries, keys, left, right, reach, before, after, scale, threshold, rescale, seed,
    FLAT: tl.constexpr, CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Also stores ``delta``, the sum of a row's weights times their gradients.

    ``diagonals`` is ``[batch, heads, blocks of queries, distances]``, of which the first is
    ``-before`` or as far as there are keys; its ends take the sums of all that lies beyond.
    """
    b, h, head, t_first = program_place(heads, queries, BLOCK_QUERIES)
    i = tl.arange(0, BLOCK_QUERIES)
    t = t_first + i
    p = Program(
        b, h, head, added, added.curve + h * curve_h, queries, keys, left, right, before, after,
        scale, threshold, rescale, seed,
    )  # fmt: skip
    q_rows = None
    q_sums = tl.zeros([BLOCK_QUERIES, WIDTH_PADDED], tl.float32)
    if WIDTH > 0:
        q_rows = load_rows(q, b, h, t, queries, WIDTH, WIDTH_PADDED)
    grad_rows = load_rows(grad, b, h, t, queries, VALUES, VALUES_PADDED)
    y_rows = load_rows(y, b, h, t, queries, VALUES, VALUES_PADDED)
    delta_rows = tl.sum(grad_rows.to(tl.float32) * y_rows.to(tl.float32), 1)
    tl.store(delta + head * queries + t, delta_rows, mask=t < queries)
    lse_rows = tl.load(lse + head * queries + t, mask=t < queries, other=float("inf"))

    row_sums = tl.zeros([BLOCK_QUERIES], tl.float32)
    first, first_close, end_close, end = keys_seen(
        t_first, queries, keys, reach, before, after, CAUSAL, BLOCK_QUERIES, BLOCK_KEYS
    )
    flat_sums = tl.zeros([BLOCK_QUERIES], tl.float32)
    for j_first in range(first, first_close, BLOCK_KEYS):
        q_sums, row_sums, flat_sums = _flat_tile_by_queries(
            p, q_sums, row_sums, flat_sums, q_rows, grad_rows, lse_rows, delta_rows, k, v,
            added_grad, diagonals, t_first, j_first, BEFORE, FLAT, CAUSAL,
            WIDTH, WIDTH_PADDED, VALUES, VALUES_PADDED, PRECISION, BLOCK_QUERIES, BLOCK_KEYS,
        )  # fmt: skip
    c = tl.arange(0, BLOCK_KEYS)
    # a diagonal crosses two tiles, or three with more queries than keys
    OLDEST: tl.constexpr = (BLOCK_QUERIES + BLOCK_KEYS - 1) // BLOCK_KEYS
    place = 0  # of the first diagonal that ends in the next tile
    if diagonals is not None:
        row = head * tl.cdiv(queries, BLOCK_QUERIES) + t_first // BLOCK_QUERIES
        diagonals += row * distances
        tl.store(diagonals, tl.sum(flat_sums, 0))
        flat_sums = tl.zeros([BLOCK_QUERIES], tl.float32)
        reached = tl.minimum(before, keys)
        place = first_close - t_first - (keys - queries) + reached - OLDEST * BLOCK_KEYS
    begun = tl.zeros([BLOCK_QUERIES, BLOCK_KEYS], tl.float32)  # the last tile, rotated
    older = tl.zeros([BLOCK_QUERIES, BLOCK_KEYS], tl.float32)  # the one before
    turned = c[None, :] + i[:, None]
    for j_first in range(first_close, end_close, BLOCK_KEYS):
        j = j_first + c
        k_rows = None
        if WIDTH > 0:
            k_rows = load_rows(k, b, h, j, keys, WIDTH, WIDTH_PADDED)
        v_rows = load_rows(v, b, h, j, keys, VALUES, VALUES_PADDED)
        _, s_grad = _gradients_of_tile(
            p, q_rows, grad_rows, lse_rows, delta_rows, k_rows, v_rows, t_first, j_first,
            CLOSE, FLAT, CAUSAL, WIDTH, PRECISION, BLOCK_QUERIES, BLOCK_KEYS,
        )  # fmt: skip
        if WIDTH > 0:
            q_sums += tl.dot(s_grad.to(k_rows.dtype), k_rows, input_precision=PRECISION)
        r = j[None, :] - t[:, None] - (keys - queries)
        if added_grad.band is not None:
            if touches_band(p, t_first, j_first, BLOCK_QUERIES, BLOCK_KEYS):
                at, close = in_band(added_grad.band, p, t, j, r)
                tl.store(at, s_grad, mask=close)
        if added_grad.row_step is not None:
            row_sums += tl.sum(tl.where(r > right, s_grad, 0.0), 1)
        if diagonals is not None:
            rotated = tl.gather(s_grad, turned % BLOCK_KEYS, 1)
            _store_ended(diagonals, distances, place, older, begun, rotated, turned, OLDEST)
            older, begun = begun, rotated
            place += BLOCK_KEYS
    if not CAUSAL:
        for j_first in range(end_close, end, BLOCK_KEYS):
            q_sums, row_sums, flat_sums = _flat_tile_by_queries(
                p, q_sums, row_sums, flat_sums, q_rows, grad_rows, lse_rows, delta_rows, k, v,
                added_grad, diagonals, t_first, j_first, AFTER, FLAT, CAUSAL,
                WIDTH, WIDTH_PADDED, VALUES, VALUES_PADDED, PRECISION, BLOCK_QUERIES, BLOCK_KEYS,
            )  # fmt: skip

    if diagonals is not None:
        nothing = tl.zeros_like(begun)
        for _ in tl.static_range(OLDEST):
            _store_ended(diagonals, distances, place, older, begun, nothing, turned, OLDEST)
            older, begun = begun, nothing
            place += BLOCK_KEYS
        if not CAUSAL:
            tl.store(diagonals + distances - 1, tl.sum(flat_sums, 0))
    if WIDTH > 0:
        store_rows(q_grad, b, h, t, queries, WIDTH, scale * q_sums)
    if added_grad.row_step is not None:
        tl.store(added_grad.row_step + head * queries + t, row_sums, mask=t < queries)


@triton.jit
def _tile_by_keys(
    p, k_sums, v_sums, column_sums, step_sums, k_rows, v_rows, q, grad, lse, delta, added_grad,
    t_first, j_first,
    PART: tl.constexpr, FLAT: tl.constexpr, CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """The sums so far of the gradients of keys, values, columns and their steps, with one more
    tile."""
    t = t_first + tl.arange(0, BLOCK_QUERIES)
    q_rows = None
    if WIDTH > 0:
        q_rows = load_rows(q, p.b, p.h, t, p.queries, WIDTH, WIDTH_PADDED)
    grad_rows = load_rows(grad, p.b, p.h, t, p.queries, VALUES, VALUES_PADDED)
    lse_rows = tl.load(lse + p.head * p.queries + t, mask=t < p.queries, other=float("inf"))
    delta_rows = tl.load(delta + p.head * p.queries + t, mask=t < p.queries, other=0.0)
    weights, s_grad = _gradients_of_tile(
        p, q_rows, grad_rows, lse_rows, delta_rows, k_rows, v_rows, t_first, j_first,
        PART, FLAT, CAUSAL, WIDTH, PRECISION, BLOCK_QUERIES, BLOCK_KEYS,
    )  # fmt: skip
    weights = tl.trans(weights.to(grad_rows.dtype))
    v_sums += tl.dot(weights, grad_rows, input_precision=PRECISION)
    if WIDTH > 0:
        k_sums += tl.dot(tl.trans(s_grad.to(q_rows.dtype)), q_rows, input_precision=PRECISION)
    if added_grad.column is not None:
        column_sums += tl.sum(s_grad, 0)
    if added_grad.column_step is not None:
        if PART == AFTER:
            step_sums += tl.sum(s_grad, 0)
        elif PART == CLOSE:
            j = j_first + tl.arange(0, BLOCK_KEYS)
            r = j[None, :] - t[:, None] - (p.keys - p.queries)
            step_sums += tl.sum(tl.where(r > p.right, s_grad, 0.0), 0)
    return k_sums, v_sums, column_sums, step_sums


@triton.jit(do_not_specialize=VARYING)
def backward_by_keys(
    q, k, v, added, curve_h, grad, lse, delta, k_grad, v_grad, added_grad,
    heads, queries, keys, left, right, reach, before, after, scale, threshold, rescale, seed,
    FLAT: tl.constexpr, CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr,
    VALUES: tl.constexpr, VALUES_PADDED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    b, h, head, j_first = program_place(heads, keys, BLOCK_KEYS)
    j = j_first + tl.arange(0, BLOCK_KEYS)
    p = Program(
        b, h, head, added, added.curve + h * curve_h, queries, keys, left, right, before, after,
        scale, threshold, rescale, seed,
    )  # fmt: skip
    k_rows = None
    k_sums = tl.zeros([BLOCK_KEYS, WIDTH_PADDED], tl.float32)
    if WIDTH > 0:
        k_rows = load_rows(k, b, h, j, keys, WIDTH, WIDTH_PADDED)
    v_rows = load_rows(v, b, h, j, keys, VALUES, VALUES_PADDED)
    v_sums = tl.zeros([BLOCK_KEYS, VALUES_PADDED], tl.float32)
    column_sums = tl.zeros([BLOCK_KEYS], tl.float32)
    step_sums = tl.zeros([BLOCK_KEYS], tl.float32)
    seeing = queries_seeing(
        j_first, queries, keys, reach, before, after, CAUSAL, BLOCK_QUERIES, BLOCK_KEYS
    )
    for NUMBER in tl.static_range(AFTER - CLOSE if CAUSAL else 0, 3):
        for t_first in range(seeing[NUMBER], seeing[NUMBER + 1], BLOCK_QUERIES):
            k_sums, v_sums, column_sums, step_sums = _tile_by_keys(
                p, k_sums, v_sums, column_sums, step_sums, k_rows, v_rows, q, grad, lse, delta,
                added_grad, t_first, j_first, AFTER - NUMBER, FLAT, CAUSAL,
                WIDTH, WIDTH_PADDED, VALUES, VALUES_PADDED, PRECISION, BLOCK_QUERIES, BLOCK_KEYS,
            )  # fmt: skip

    store_rows(v_grad, b, h, j, keys, VALUES, v_sums)
    if WIDTH > 0:
        store_rows(k_grad, b, h, j, keys, WIDTH, scale * k_sums)
    if added_grad.column is not None:
        tl.store(added_grad.column + head * keys + j, column_sums, mask=j < keys)
    if added_grad.column_step is not None:
        tl.store(added_grad.column_step + head * keys + j, step_sums, mask=j < keys)
