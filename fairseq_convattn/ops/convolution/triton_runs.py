"""Convolutions of few taps in Triton: taps of runs of positions, summed one by one.

A program takes runs of ``RUN`` positions of one head, or of several narrow ones, of a sentence.
"""

import triton
import triton.language as tl

from ..triton_rows import load_rows, load_taps, load_wide_taps, store_rows, store_tap, within
from ..triton_tensors import LOG2_E, at
from .triton_tiles import VARYING, columns, inverse, log2, place_of


@triton.jit
def _runs(first, h_first, RUNS: tl.constexpr, RUN: tl.constexpr, HEADS: tl.constexpr):
    """First positions and heads of runs."""
    row = tl.arange(0, RUNS * HEADS)
    return first + row // HEADS * RUN, h_first + row % HEADS


@triton.jit
def _weights(taps, b, start, h, j, there, SOFTMAX: tl.constexpr, TAPS: tl.constexpr):
    """Taps in float32, normalised if wanted, and then the binary logarithm of the softmax's sum."""
    row = load_wide_taps(taps, b, start, h, j, there, TAPS)
    if not SOFTMAX:
        return row, row[0]
    else:
        highest = row[0]
        for tap in tl.static_range(1, TAPS):
            highest = tl.maximum(highest, row[tap])
        total, raised = tl.zeros_like(highest), ()
        for tap in tl.static_range(TAPS):
            w = tl.exp2((row[tap] - highest) * LOG2_E)
            total += w
            raised = raised + (w,)
        by, normalised = inverse(total), ()
        for tap in tl.static_range(TAPS):
            normalised = normalised + (raised[tap] * by,)
        return normalised, highest * LOG2_E + log2(total)


@triton.jit
def _drop(row, kept, b, start, h, j, there, scale, TAPS: tl.constexpr):
    """Apply DropConnect, if any, to taps."""
    if kept is None:
        return row
    else:
        dropped, keeps = (), load_taps(kept, b, start, h, j, there, TAPS)
        for tap in tl.static_range(TAPS):
            dropped = dropped + (tl.where(keeps[tap] != 0, row[tap] * scale, 0.0),)
        return dropped


@triton.jit(do_not_specialize=VARYING)
def forward_by_taps(
    x, taps, kept, lse, y, time, inputs, batch, heads, left, scale,
    SOFTMAX: tl.constexpr, SHARED: tl.constexpr, TAPS: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, RUN: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    b, h_first, first = place_of(batch, heads, ROWS, HEADS)
    start, h = _runs(first, h_first, ROWS // RUN, RUN, HEADS)
    real = h < heads if HEADS > 1 else None
    weights = ()
    for j in tl.static_range(RUN):
        there = within(start + j, time, real)
        if j == 0 or not SHARED:
            row, sums = _weights(taps, b, start, h, j, there, SOFTMAX, TAPS)
            if lse is not None:
                stored = there & (start + b == 0)[:, None] if SHARED else there
                store_tap(lse, b, start, h, j, stored, 0, sums)
        weights = weights + _drop(row, kept, b, start, h, j, there, scale, TAPS)
    for c_first in range(0, HEAD_DIM, CHANNELS):
        c, y_rows = columns(c_first, CHANNELS), ()
        rows = load_rows(x, b, start - left, h, inputs, real, c, HEAD_DIM, RUN + TAPS - 1)
        for j in tl.static_range(RUN):
            y_row = weights[j * TAPS] * rows[j].to(tl.float32)
            for tap in tl.static_range(1, TAPS):
                y_row += weights[j * TAPS + tap] * rows[j + tap].to(tl.float32)
            y_rows = y_rows + (y_row,)
        store_rows(y, b, start, h, time, real, c, HEAD_DIM, y_rows, RUN)


@triton.jit
def _of_logits(found, weights, TAPS: tl.constexpr):
    """Gradients of the logits of normalised taps from those of the taps."""
    mean, centred = weights[0] * found[0], ()
    for tap in tl.static_range(1, TAPS):
        mean += weights[tap] * found[tap]
    for tap in tl.static_range(TAPS):
        centred = centred + (weights[tap] * (found[tap] - mean),)
    return centred


@triton.jit
def _store_taps_grad(
    taps_grad, found, taps, kept, b, start, h, real, time, first, h_first, heads, scale,
    SOFTMAX: tl.constexpr, SHARED: tl.constexpr, TAPS: tl.constexpr, RUNS: tl.constexpr,
    RUN: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of the given taps, from those of the normalised, dropped ones,
    ``[runs, 1]`` for every position of a run and tap."""
    totals = ()
    for _ in tl.static_range(TAPS):
        totals = totals + (tl.zeros([RUNS * HEADS, 1], tl.float32),)
    for j in tl.static_range(RUN):
        there, row, sums = within(start + j, time, real), (), ()
        for tap in tl.static_range(TAPS):
            row = row + (tl.where(there, found[j * TAPS + tap], 0.0),)
        row = _drop(row, kept, b, start, h, j, there, scale, TAPS)
        if SOFTMAX:
            weights, _ = _weights(taps, b, start, h, j, there, True, TAPS)
            row = _of_logits(row, weights, TAPS)
        for tap in tl.static_range(TAPS):
            sums = sums + (totals[tap] + row[tap],)
            if not SHARED:
                store_tap(taps_grad, b, start, h, j, there, tap, row[tap])
        totals = sums
    if SHARED:
        t, h = first // (RUNS * RUN), h_first + tl.arange(0, HEADS)
        for tap in tl.static_range(TAPS):
            place = at(taps_grad, b, t, h) + tl.full([1], tap, tl.int64) * taps_grad.c
            tl.store(place, tl.sum(tl.reshape(totals[tap], [RUNS, HEADS]), 0), mask=h < heads)


@triton.jit(do_not_specialize=VARYING)
def backward_by_taps(
    x, taps, kept, grad, x_grad, taps_grad, time, inputs, batch, heads, left, scale,
    SOFTMAX: tl.constexpr, SHARED: tl.constexpr, TAPS: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, RUN: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """For the same positions the gradients of the taps, as outputs, and of x, as inputs."""
    b, h_first, first = place_of(batch, heads, ROWS, HEADS)
    RUNS: tl.constexpr = ROWS // RUN
    COUNT: tl.constexpr = RUN + TAPS - 1
    start, h = _runs(first, h_first, RUNS, RUN, HEADS)
    real = h < heads if HEADS > 1 else None
    if taps_grad is not None and first < time:
        found = ()
        for _ in tl.static_range(RUN * TAPS):
            found = found + (tl.zeros([RUNS * HEADS, 1], tl.float32),)
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c, more = columns(c_first, CHANNELS), ()
            rows = load_rows(x, b, start - left, h, inputs, real, c, HEAD_DIM, COUNT)
            grad_rows = load_rows(grad, b, start, h, time, real, c, HEAD_DIM, RUN)
            for j in tl.static_range(RUN):
                for tap in tl.static_range(TAPS):
                    products = grad_rows[j].to(tl.float32) * rows[j + tap].to(tl.float32)
                    more = more + (found[j * TAPS + tap] + tl.sum(products, 1)[:, None],)
            found = more
        _store_taps_grad(
            taps_grad, found, taps, kept, b, start, h, real, time, first, h_first, heads, scale,
            SOFTMAX, SHARED, TAPS, RUNS, RUN, HEADS,
        )  # fmt: skip
    if x_grad is not None and first < inputs:
        before = start + left - (TAPS - 1)  # the first output that sees the run
        weights = ()
        for s in tl.static_range(COUNT):
            there = within(before + s, time, real)
            if s == 0 or not SHARED:
                loaded = (h < heads)[:, None] if SHARED else there
                row, _ = _weights(taps, b, before, h, s, loaded, SOFTMAX, TAPS)
            weights = weights + _drop(row, kept, b, before, h, s, there, scale, TAPS)
        for c_first in range(0, HEAD_DIM, CHANNELS):
            c, x_sums = columns(c_first, CHANNELS), ()
            rows = load_rows(grad, b, before, h, time, real, c, HEAD_DIM, COUNT)
            for j in tl.static_range(RUN):
                x_sum = tl.zeros(rows[0].shape, tl.float32)
                for tap in tl.static_range(TAPS):
                    w = weights[(j + TAPS - 1 - tap) * TAPS + tap]
                    x_sum += w * rows[j + TAPS - 1 - tap].to(tl.float32)
                x_sums = x_sums + (x_sum,)
            store_rows(x_grad, b, start, h, inputs, real, c, HEAD_DIM, x_sums, RUN)
