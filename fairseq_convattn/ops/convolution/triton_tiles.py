"""Convolutions of many taps in Triton: products of matrices.

A program takes a tile of time of one sentence and one head, and normalises the taps that it uses,
which exist nowhere else. It multiplies with the tile's band matrix, whose row i has the taps of
output i from column i on:
``Y = Band X``, ``dX = Band^T dY``, and the taps' gradients are the diagonals of ``dY X^T``. Each
row of taps is loaded rotated to its place in the band, so that no thread gives any to another.
Values that are not finite stay in their sentence, but may spread over the whole tiles that read
them, since 0 x NaN is NaN. No atomics, so that the same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_tensors import ASSEMBLY, LOG2_E, at, load, store

VARYING = ["time", "inputs", "batch", "heads", "left"]
GROUP = tl.constexpr(8)  # taps
# where no dimension is contiguous, Triton's layouts give neighbouring threads the last one, before
# 3.7 the first one
GROUPED_FIRST = tl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7))


@triton.jit
def columns(first, COUNT: tl.constexpr):
    return (first + tl.arange(0, COUNT))[None, :]


@triton.jit
def _kernels_at(taps, b, t, h, present, by, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """Offsets of the taps of rows, and which of them exist.

    ``[groups, rows, taps of a group]`` or, ``GROUPED_FIRST``, the other way round: so laid out,
    neighbouring threads load the taps of a group, and all of them few rows, each of which has a
    cache line of its own. Each row is rotated: its tap k stands in column k + ``by``.
    """
    group, tap = tl.arange(0, PADDED // GROUP) * GROUP, tl.arange(0, GROUP)
    if GROUPED_FIRST:
        column = group[None, None, :] + tap[:, None, None]
    else:
        column = group[:, None, None] + tap[None, None, :]
    k = (column - by[None, :, None]) & (PADDED - 1)
    place = at(taps, b, t, h)[None, :, None] + k.to(tl.int64) * taps.c
    return place, present[None, :, None] & (k < TAPS)


@triton.jit
def _load_kernels(taps, b, t, h, present, by, other, TAPS: tl.constexpr, PADDED: tl.constexpr):
    place, inside = _kernels_at(taps, b, t, h, present, by, TAPS, PADDED)
    return tl.load(place, mask=inside, other=other)


@triton.jit
def _by_rows(kernels):
    """``[rows, PADDED]``"""
    shape: tl.constexpr = [kernels.shape[1], kernels.shape[0] * kernels.shape[2]]
    if GROUPED_FIRST:
        return tl.reshape(tl.permute(kernels, (1, 2, 0)), shape)
    else:
        return tl.reshape(tl.permute(kernels, (1, 0, 2)), shape)


@triton.jit
def _by_groups(rows):
    """The inverse of ``_by_rows``."""
    shape: tl.constexpr = [rows.shape[0], rows.shape[1] // GROUP, GROUP]
    if GROUPED_FIRST:
        return tl.permute(tl.reshape(rows, shape), (2, 0, 1))
    else:
        return tl.permute(tl.reshape(rows, shape), (1, 0, 2))


@triton.jit
def log2(x):
    """Of normal numbers."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)


@triton.jit
def inverse(x):
    """Of normal numbers."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def _sum_up(logits, lse, b, t, h, stored):
    """Each row's highest logit and sum of exponentials, whose binary logarithm is stored."""
    highest = tl.max(tl.max(logits, 2), 0)
    total = tl.sum(tl.sum(tl.exp2((logits - highest[None, :, None]) * LOG2_E), 2), 0)
    tl.store(at(lse, b, t, h), highest * LOG2_E + log2(total), mask=stored)
    return highest, total


@triton.jit
def _load_lse(lse, b, t, h, present):
    """The logarithms of rows; those not ``present`` get no weight."""
    return tl.load(at(lse, b, t, h), mask=present, other=float("inf"))


@triton.jit
def _load_softmax(taps, lse, b, t, h, present, by, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """The taps as they are or, with the logarithms of their sums, normalised."""
    if lse is None:
        return _load_kernels(taps, b, t, h, present, by, 0.0, TAPS, PADDED).to(tl.float32)
    else:
        logits = _load_kernels(taps, b, t, h, present, by, -float("inf"), TAPS, PADDED)
        sums = _load_lse(lse, b, t, h, present)
        return tl.exp2(logits.to(tl.float32) * LOG2_E - sums[None, :, None])


@triton.jit
def _drop(w, kept, b, t, h, present, by, scale, TAPS: tl.constexpr, PADDED: tl.constexpr):
    """Apply DropConnect, if any."""
    if kept is None:
        return w
    else:
        kept = _load_kernels(kept, b, t, h, present, by, 0, TAPS, PADDED)
        return tl.where(kept != 0, w * scale, 0.0)


@triton.jit
def _store_taps_grad(
    taps_grad, found, taps, kept, lse, b, t, h, present, by, first, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the given taps, from those of the normalised, dropped ones ``[rows,
    PADDED]``, rotated as in ``_kernels_at``."""
    PADDED: tl.constexpr = found.shape[1]
    found = tl.where(present[None, :, None], _by_groups(found), 0.0)
    found = _drop(found, kept, b, t, h, present, by, scale, TAPS, PADDED)
    if lse is not None:
        w = _load_softmax(taps, lse, b, t, h, present, by, TAPS, PADDED)
        found = w * (found - tl.sum(tl.sum(w * found, 2), 0)[None, :, None])
    if SHARED:
        k = tl.arange(0, PADDED)
        place = at(taps_grad, b, first // ROWS, h) + k.to(tl.int64) * taps_grad.c
        tl.store(place, tl.sum(_turn(_by_rows(found), by), 0), mask=k < TAPS)
    else:
        place, inside = _kernels_at(taps_grad, b, t, h, present, by, TAPS, PADDED)
        tl.store(place, found.to(taps_grad.data.dtype.element_ty), mask=inside)


@triton.jit
def place_of(batch, heads, ROWS: tl.constexpr, HEADS: tl.constexpr):
    """The sentence, first head and first position of this program."""
    groups = tl.cdiv(heads, HEADS)
    group = tl.program_id(0) % groups
    sentence = tl.program_id(0) // groups
    return (sentence % batch).to(tl.int64), group * HEADS, sentence // batch * ROWS


@triton.jit
def _turn(rows, by):
    """Rotates every row of ``[rows, PADDED]``: column k becomes column k - by."""
    PADDED: tl.constexpr = rows.shape[1]
    return tl.gather(rows, (columns(0, PADDED) + by[:, None]) & (PADDED - 1), 1)


@triton.jit
def _in_band(values, tap, PADDED: tl.constexpr):
    """Zero where there is no such tap."""
    return tl.where(tap.to(tl.uint32) < PADDED, values, 0.0)


@triton.jit
def _load_tiles(
    x, b, h, first, inputs, c_first,
    TAPS: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """All positions of x that ``ROWS`` outputs see, in tiles ``[PADDED, CHANNELS]``: loads that
    are under way together."""
    c = columns(c_first, CHANNELS)
    tiles = ()
    for j_first in tl.static_range(0, ROWS + TAPS - 1, PADDED):
        j = j_first + tl.arange(0, PADDED)
        n = first + j
        there = (n >= 0) & (n < inputs) & (j < ROWS + TAPS - 1)
        tiles = tiles + (load(x, b, n, h, there[:, None] & (c < HEAD_DIM), c),)
    return tiles


@triton.jit(do_not_specialize=VARYING)
def forward_by_bands(
    x, taps, kept, lse, y, time, inputs, batch, heads, left, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    b, h, first = place_of(batch, heads, ROWS, 1)
    row = tl.arange(0, ROWS)
    t = first + row
    present = t < time
    x_tiles = _load_tiles(x, b, h, first - left, inputs, 0, TAPS, PADDED, HEAD_DIM, ROWS, CHANNELS)
    if lse is not None:
        logits = _load_kernels(taps, b, t, h, present, row, -float("inf"), TAPS, PADDED)
        logits = logits.to(tl.float32)
        stored = present & (t + b == 0) if SHARED else present
        highest, total = _sum_up(logits, lse, b, t, h, stored)
        w = tl.exp2((logits - highest[None, :, None]) * LOG2_E) * inverse(total)[None, :, None]
    else:
        w = _load_kernels(taps, b, t, h, present, row, 0.0, TAPS, PADDED).to(tl.float32)
    w = _drop(w, kept, b, t, h, present, row, scale, TAPS, PADDED)
    turned = _by_rows(w.to(x.data.dtype.element_ty))
    for c_first in range(0, HEAD_DIM, CHANNELS):
        c = columns(c_first, CHANNELS)
        y_rows = tl.zeros([ROWS, CHANNELS], tl.float32)
        for j_first in tl.static_range(0, ROWS + TAPS - 1, PADDED):
            j = j_first + tl.arange(0, PADDED)
            band = _in_band(turned, j[None, :] - row[:, None], PADDED)
            y_rows += tl.dot(band, x_tiles[j_first // PADDED], input_precision=PRECISION)
        store(y, b, t, h, present[:, None] & (c < HEAD_DIM), c, y_rows)
        next_c = c_first + CHANNELS
        if next_c < HEAD_DIM:
            x_tiles = _load_tiles(
                x, b, h, first - left, inputs, next_c, TAPS, PADDED, HEAD_DIM, ROWS, CHANNELS
            )


@triton.jit(do_not_specialize=VARYING)
def backward_by_bands(
    x, taps, kept, lse, grad, x_grad, taps_grad, time, inputs, batch, heads, left, scale,
    SHARED: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For the same positions the gradients of the taps, as outputs, and of x, as inputs."""
    tl.static_assert(ROWS == PADDED)
    b, h, first = place_of(batch, heads, ROWS, 1)
    row = tl.arange(0, ROWS)
    t = first + row
    if taps_grad is not None and first < time:
        present = t < time
        found = tl.zeros([ROWS, PADDED], tl.float32)
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c = columns(c_first, CHANNELS)
            grad_rows = load(grad, b, t, h, present[:, None] & (c < HEAD_DIM), c)
            x_tiles = _load_tiles(
                x, b, h, first - left, inputs, c_first, TAPS, PADDED, HEAD_DIM, ROWS, CHANNELS
            )
            for j_first in tl.static_range(0, ROWS + TAPS - 1, PADDED):
                x_rows = tl.trans(x_tiles[j_first // PADDED])
                products = tl.dot(grad_rows, x_rows, input_precision=PRECISION)
                tap = j_first + tl.arange(0, PADDED)[None, :] - row[:, None]
                found += _in_band(products, tap, PADDED)
        _store_taps_grad(
            taps_grad, found, taps, kept, lse, b, t, h, present, row, first, scale, SHARED, TAPS,
            ROWS,
        )  # fmt: skip
    if x_grad is not None and first < inputs:
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c = columns(c_first, CHANNELS)
            x_sums = tl.zeros([ROWS, CHANNELS], tl.float32)
            for j_first in tl.static_range(0, ROWS + TAPS - 1, PADDED):
                j = j_first + tl.arange(0, PADDED)
                i = first + left - (TAPS - 1) + j
                present = (i >= 0) & (i < time) & (j < ROWS + TAPS - 1)
                by = j - (TAPS - 1)
                w = _load_softmax(taps, lse, b, i, h, present, by, TAPS, PADDED)
                w = _drop(w, kept, b, i, h, present, by, scale, TAPS, PADDED)
                grad_rows = load(grad, b, i, h, present[:, None] & (c < HEAD_DIM), c)
                turned = _by_rows(w.to(grad_rows.dtype))
                band = tl.trans(_in_band(turned, row[None, :] - by[:, None], PADDED))
                x_sums += tl.dot(band, grad_rows, input_precision=PRECISION)
            there = (t < inputs)[:, None] & (c < HEAD_DIM)
            store(x_grad, b, t, h, there, c, x_sums)
