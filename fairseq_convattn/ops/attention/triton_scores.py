"""Tiles of composite attention's scores, the weights and gradients from them, and which tiles there
are, for the kernels in ``triton_tiles``.

Tiles that lie wholly where the curve is flat, ``MARGIN`` or more before an end, take one number
from it; those in between load it. It goes on for ``MARGIN`` so that no tile reads beyond it.
``FLAT`` says that there may be such tiles beside a band. Then the others are few, and all may
touch it.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..triton_tensors import ASSEMBLY, LOG2_E, load, store

MARGIN = tl.constexpr(256)  # at least as much as a block of queries and one of keys
BEFORE, CLOSE, AFTER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # parts of the curve


class Added(NamedTuple):
    """What is added to the products, each contiguous, or their gradients; see :class:`Scores`."""

    curve: Tensor | None
    column: Tensor | None
    band: Tensor | None
    row_step: Tensor | None
    column_step: Tensor | None


class Program(NamedTuple):
    """What a program's tiles have in common.

    Attributes:
        b, h, head: its sentence, the head there, and its number among those of all sentences.
        added: as the kernels take it.
        curve: the head's.
        queries, keys, left, right, before, after, scale: see :class:`Layout`.
        threshold, rescale, seed: of :class:`Dropout`; without dropout there is no seed.
    """

    b: tl.tensor
    h: tl.tensor
    head: tl.tensor
    added: Added
    curve: tl.tensor
    queries: tl.tensor
    keys: tl.tensor
    left: tl.tensor
    right: tl.tensor
    before: tl.tensor
    after: tl.tensor
    scale: tl.tensor
    threshold: tl.tensor
    rescale: tl.tensor
    seed: tl.tensor | None


@triton.jit
def program_place(heads, length, BLOCK: tl.constexpr):
    """Of this program the sentence, its head, the head among those of all sentences, and the
    first of its positions."""
    blocks = tl.cdiv(length, BLOCK)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    return head // heads, head % heads, head, tl.program_id(0) % blocks * BLOCK


@triton.jit
def load_rows(x, b, h, i, length, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """``[rows, PADDED]``, zero beyond ``length`` and ``WIDTH``."""
    c = tl.arange(0, PADDED)[None, :]
    if WIDTH == PADDED:
        return load(x, b, i, h, i[:, None] < length, c)
    else:
        return load(x, b, i, h, (i[:, None] < length) & (c < WIDTH), c)


@triton.jit
def store_rows(x, b, h, i, length, WIDTH: tl.constexpr, values):
    c = tl.arange(0, values.shape[1])[None, :]
    store(x, b, i, h, (i[:, None] < length) & (c < WIDTH), c, values)


@triton.jit
def touches_band(p, t, j, BLOCK_QUERIES, BLOCK_KEYS):
    """Whether the band has taps of a block of queries from t on and of keys from j on."""
    r = j - t - (p.keys - p.queries)
    return (r + BLOCK_KEYS > -p.left) & (r - BLOCK_QUERIES < p.right)


@triton.jit
def _load_in_place(place):
    """Loads numbers of float32 to the threads that take them. ``tl.load`` would put them into
    shared memory first, which costs as much as the tile's products."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [place], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.load(place)


@triton.jit
def _load_in_place_where(place, there):
    """As ``_load_in_place``; zero elsewhere."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            """{
            .reg .pred p;
            setp.ne.s32 p, $2, 0;
            mov.f32 $0, 0f00000000;
            @p ld.global.nc.f32 $0, [$1];
            }""",
            "=f,l,r",
            [place, there.to(tl.int32)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.load(place, mask=there, other=0.0)


@triton.jit
def position_scores(
    p, t_first, j_first, PART: tl.constexpr, FLAT: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """What is added to the products of a tile of queries and keys that lies in this part of the
    curve; -inf or hidden where there are no such keys."""
    i, c = tl.arange(0, BLOCK_QUERIES), tl.arange(0, BLOCK_KEYS)
    t, j = t_first + i, j_first + c
    added, offset = p.added, p.keys - p.queries
    if PART == CLOSE:
        curve = p.curve + (j_first - t_first - offset + p.before)
        s = _load_in_place(curve + (c[None, :] - i[:, None]))
    else:
        end = 0 if PART == BEFORE else p.before + p.after
        s = tl.full([BLOCK_QUERIES, BLOCK_KEYS], 0.0, tl.float32) + tl.load(p.curve + end)
    if added.column is not None:
        column = tl.load(added.column + p.head * p.keys + j, mask=j < p.keys, other=-float("inf"))
        s += column[None, :]
    elif not CAUSAL and PART != BEFORE:
        s = tl.where((j < p.keys)[None, :], s, -float("inf"))
    if PART == CLOSE:
        r = j[None, :] - t[:, None] - offset
        if added.band is not None:
            at, close = in_band(added.band, p, t, j, r)
            if FLAT:
                s += _load_in_place_where(at, close)
            else:
                if touches_band(p, t_first, j_first, BLOCK_QUERIES, BLOCK_KEYS):
                    s += _load_in_place_where(at, close)
    if PART != BEFORE:
        if added.row_step is not None:
            step = tl.load(added.row_step + p.head * p.queries + t, mask=t < p.queries, other=0.0)
            s += step[:, None] if PART == AFTER else tl.where(r > p.right, step[:, None], 0.0)
        if added.column_step is not None:
            step = tl.load(added.column_step + p.head * p.keys + j, mask=j < p.keys, other=0.0)
            s += step[None, :] if PART == AFTER else tl.where(r > p.right, step[None, :], 0.0)
    return s


@triton.jit
def in_band(band, p, t, j, r):
    """Where the band has the taps of queries t and keys j, at distances r, and whether it does."""
    rows = band + (p.head * p.queries + t[:, None]) * (p.left + 1 + p.right)
    inside = (t < p.queries)[:, None] & (j < p.keys)[None, :]
    return rows + (r + p.left), inside & (r >= -p.left) & (r <= p.right)


@triton.jit
def _hash(x, key):
    """That of ``dropout.py``, of uint32."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) ^ key
    x = (x ^ (x >> 15)) * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def kept_by_dropout(head, t, j, queries, threshold, seed):
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
def keys_seen(
    t_first, queries, keys, reach, before, after, CAUSAL: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """The first key and the end of those that queries of a block see, and in between the first
    of the blocks of keys that are close to them and the end of these."""
    own = keys - queries + t_first
    last = tl.minimum(own + BLOCK_QUERIES, keys) - 1
    first = tl.maximum(own - reach, 0)
    end = tl.minimum(last + reach + 1, keys)
    flat = tl.maximum(own - (before - MARGIN) + 1 - first, 0) // BLOCK_KEYS
    first_close = first + flat * BLOCK_KEYS
    if CAUSAL:
        end = tl.minimum(end, last + 1)
        return first, first_close, end, end
    else:
        close = tl.maximum(own + BLOCK_QUERIES - 1 + (after - MARGIN) - first_close, 0)
        end_close = first_close + tl.cdiv(close, BLOCK_KEYS) * BLOCK_KEYS
        return first, first_close, tl.minimum(end_close, end), end


@triton.jit
def queries_seeing(
    j_first, queries, keys, reach, before, after, CAUSAL: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """As ``keys_seen``, of the queries that see keys of a block."""
    own = j_first - (keys - queries)
    first = tl.maximum(own if CAUSAL else own - reach, 0)
    first = tl.minimum(first, queries)
    end = tl.minimum(tl.minimum(own + BLOCK_KEYS, queries) + reach, queries)
    first_close = first
    if not CAUSAL:
        flat = tl.maximum(own - (after - MARGIN) + 1 - first, 0) // BLOCK_QUERIES
        first_close = first + flat * BLOCK_QUERIES
    close = tl.maximum(own + BLOCK_KEYS - 1 + (before - MARGIN) - first_close, 0)
    end_close = first_close + tl.cdiv(close, BLOCK_QUERIES) * BLOCK_QUERIES
    return first, first_close, tl.minimum(end_close, end), end


@triton.jit
def weights_and_gradients(p, s, grad, v, lse, delta, t, j, PRECISION: tl.constexpr):
    """The weights as dropout leaves them, and the gradients of the scores."""
    weights = tl.exp2(s * LOG2_E - (lse * LOG2_E)[:, None])
    dropped = weights
    above = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    if p.seed is not None:
        kept = kept_by_dropout(p.head, t, j, p.queries, p.threshold, p.seed)
        dropped = tl.where(kept, weights * p.rescale, 0.0)
        above = tl.where(kept, above * p.rescale, 0.0)
    return dropped, weights * (above - delta[:, None])
