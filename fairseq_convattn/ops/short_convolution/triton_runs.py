"""Static and headwise short convolutions in Triton: runs of positions of a head's channels, or of
as many channels without heads.

A kernel is the sum of a static one of every channel and, if there are heads, of taps of the head.
No atomics, so that the same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_rows import load_rows, load_wide_taps, store_rows, store_tap, within

VARYING = ["batch", "time", "inputs", "left"]


@triton.jit
def runs(tile, batch, RUNS: tl.constexpr, RUN: tl.constexpr):
    """A sentence and first positions of runs; tiles of one time follow each other."""
    first = tile // batch * (RUNS * RUN)
    return (tile % batch).to(tl.int64), first + tl.arange(0, RUNS) * RUN


@triton.jit
def _channels(block, channels, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """The channels of a block, and where they end."""
    return tl.arange(0, CHANNELS)[None, :], tl.minimum(channels - block * WIDTH, WIDTH)


@triton.jit
def _load_static(
    static, block, c, end, channels, OWN: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr,
    RUNS: tl.constexpr,
):  # fmt: skip
    """``[runs, channels]`` of every tap, of all runs alike; that of a position itself is one
    more."""
    row, c = (), c + tl.zeros([RUNS, 1], tl.int32)
    for tap in tl.static_range(TAPS):
        w = tl.load(static + tap * channels + block * WIDTH + c, mask=c < end, other=0.0)
        w = w.to(tl.float32)
        if tap == OWN:
            w += 1.0
        row = row + (w,)
    return row


@triton.jit
def _times(static_row, predicted, tap: tl.constexpr, rows):
    """What a tap adds: that of the static kernel and the predicted one."""
    rows = rows.to(tl.float32)
    if len(predicted) == 0:
        return static_row[tap] * rows
    else:
        return (static_row[tap] + predicted[tap]) * rows


@triton.jit(do_not_specialize=VARYING)
def forward(
    x, taps, static, y, batch, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, RUNS: tl.constexpr,
    RUN: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w[t, k] x[t + k - left]``"""
    blocks = tl.cdiv(channels, WIDTH)
    block = tl.program_id(0) % blocks
    b, start = runs(tl.program_id(0) // blocks, batch, RUNS, RUN)
    h, y_rows = start * 0 + block, ()
    c, end = _channels(block, channels, WIDTH, CHANNELS)
    rows = load_rows(x, b, start - left, h, inputs, None, c, end, RUN + TAPS - 1)
    row = _load_static(static, block, c, end, channels, OWN, TAPS, WIDTH, RUNS)
    for j in tl.static_range(RUN):
        predicted = ()
        if taps is not None:
            there = within(start + j, time, None)
            predicted = load_wide_taps(taps, b, start, h, j, there, TAPS)
        y_row = _times(row, predicted, 0, rows[j])
        for tap in tl.static_range(1, TAPS):
            y_row += _times(row, predicted, tap, rows[j + tap])
        y_rows = y_rows + (y_row,)
    store_rows(y, b, start, h, time, None, c, end, y_rows, RUN)


@triton.jit(do_not_specialize=VARYING)
def backward(
    x, taps, static, grad, x_grad, taps_grad, static_grad, batch, time, inputs, channels, left,
    OWN: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    RUNS: tl.constexpr, RUN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of every group-th tile of inputs t, whose outputs are ``n = t + left - k``: ``x_grad[t] =
    sum_k w[n, k] grad[n]``, ``taps_grad[n, k]``, a sum over channels, and that of ``static``, a
    sum over positions."""
    blocks = tl.cdiv(channels, WIDTH)  # side by side, so that rows are read whole
    group, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    groups = tl.num_programs(0) // blocks
    c, end = _channels(block, channels, WIDTH, CHANNELS)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums = sums + (tl.zeros([RUNS, CHANNELS], tl.float32),)
    for tile in tl.range(group, batch * tl.cdiv(inputs, RUNS * RUN), groups, num_stages=STAGES):
        b, start = runs(tile, batch, RUNS, RUN)
        h, first = start * 0 + block, start + left - (TAPS - 1)
        x_rows = load_rows(x, b, start, h, inputs, None, c, end, RUN)
        rows = load_rows(grad, b, first, h, time, None, c, end, RUN + TAPS - 1)
        row = _load_static(static, block, c, end, channels, OWN, TAPS, WIDTH, RUNS)
        x_sums = ()
        for _ in tl.static_range(RUN):
            x_sums = x_sums + (tl.zeros([RUNS, CHANNELS], tl.float32),)
        for s in tl.static_range(RUN + TAPS - 1):
            there, predicted, more, new = within(first + s, time, None), (), (), ()
            if taps is not None:
                predicted = load_wide_taps(taps, b, first, h, s, there, TAPS)
            for j in tl.static_range(RUN):
                x_sum = x_sums[j]
                if s >= j and s < j + TAPS:
                    x_sum += _times(row, predicted, j + TAPS - 1 - s, rows[s])
                more = more + (x_sum,)
            for tap in tl.static_range(TAPS):
                total = sums[tap]
                if s + tap >= TAPS - 1 and s + tap < RUN + TAPS - 1:
                    products = x_rows[s + tap - (TAPS - 1)].to(tl.float32) * rows[s].to(tl.float32)
                    if static_grad is not None:
                        total += products
                    if taps_grad is not None:
                        seen = there & within(start + (s + tap - (TAPS - 1)), inputs, None)
                        found = tl.sum(products, 1)[:, None]
                        store_tap(taps_grad, b, first, h, s, seen, tap, found)
                new = new + (total,)
            x_sums, sums = more, new
        if x_grad is not None:
            store_rows(x_grad, b, start, h, inputs, None, c, end, x_sums, RUN)
    if static_grad is not None:
        for tap in tl.static_range(TAPS):
            place = static_grad + (group.to(tl.int64) * TAPS + tap) * channels + block * WIDTH + c
            tl.store(place, tl.sum(sums[tap], 0)[None, :], mask=c < end)
