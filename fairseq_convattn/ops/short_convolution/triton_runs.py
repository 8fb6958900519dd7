"""Static and headwise short convolutions in Triton: runs of positions of a head's channels, or of
as many channels without heads.

A kernel is the sum of a static one of every channel and, if there are heads, of taps of the head.
No atomics, so that the same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_runs import load_rows, load_taps, store_rows, store_tap, within

VARYING = ["batch", "time", "inputs", "left"]


@triton.jit
def _runs(tile, batch, RUNS: tl.constexpr, RUN: tl.constexpr):
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
def _times(static_tap, predicted, at: tl.constexpr, rows):
    """What a tap adds: that of the static kernel and the ``at``-th of the predicted ones."""
    rows = rows.to(tl.float32)
    if len(predicted) == 0:
        return static_tap * rows
    else:
        return (static_tap + predicted[at]) * rows


@triton.jit
def _load_predicted(taps, b, start, h, time, COUNT: tl.constexpr, TAPS: tl.constexpr):
    """Taps of ``COUNT`` positions from ``start`` on, ``[runs, 1]`` each."""
    predicted = ()
    for j in tl.static_range(COUNT):
        given = load_taps(taps, b, start, h, j, within(start + j, time, None), TAPS)
        for tap in tl.static_range(TAPS):
            predicted = predicted + (given[tap].to(tl.float32),)
    return predicted


@triton.jit(do_not_specialize=VARYING)
def forward(
    x, taps, static, y, batch, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, RUNS: tl.constexpr,
    RUN: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w[t, k] x[t + k - left]``"""
    blocks = tl.cdiv(channels, WIDTH)
    block = tl.program_id(0) % blocks
    b, start = _runs(tl.program_id(0) // blocks, batch, RUNS, RUN)
    h, predicted, y_rows = start * 0 + block, (), ()
    c, end = _channels(block, channels, WIDTH, CHANNELS)
    rows = load_rows(x, b, start - left, h, inputs, None, c, end, RUN + TAPS - 1)
    if taps is not None:
        predicted = _load_predicted(taps, b, start, h, time, RUN, TAPS)
    row = _load_static(static, block, c, end, channels, OWN, TAPS, WIDTH, RUNS)
    for j in tl.static_range(RUN):
        y_row = _times(row[0], predicted, j * TAPS, rows[j])
        for tap in tl.static_range(1, TAPS):
            y_row += _times(row[tap], predicted, j * TAPS + tap, rows[j + tap])
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
        b, start = _runs(tile, batch, RUNS, RUN)
        h, last, new = start * 0 + block, start + left - (TAPS - 1), ()
        x_rows = load_rows(x, b, start, h, inputs, None, c, end, RUN)
        rows = load_rows(grad, b, last, h, time, None, c, end, RUN + TAPS - 1)
        if x_grad is not None:
            row = _load_static(static, block, c, end, channels, OWN, TAPS, WIDTH, RUNS)
            predicted, x_sums = (), ()
            if taps is not None:
                predicted = _load_predicted(taps, b, last, h, time, RUN + TAPS - 1, TAPS)
            for j in tl.static_range(RUN):
                x_sum = tl.zeros([RUNS, CHANNELS], tl.float32)
                for tap in tl.static_range(TAPS):
                    x_sum += _times(
                        row[tap],
                        predicted,
                        (j + TAPS - 1 - tap) * TAPS + tap,
                        rows[j + TAPS - 1 - tap],
                    )
                x_sums = x_sums + (x_sum,)
            store_rows(x_grad, b, start, h, inputs, None, c, end, x_sums, RUN)
        for tap in tl.static_range(TAPS):
            total = sums[tap]
            for j in tl.static_range(RUN):
                products = x_rows[j].to(tl.float32) * rows[j + TAPS - 1 - tap].to(tl.float32)
                total += products
                if taps_grad is not None:
                    there = within(last + (j + TAPS - 1 - tap), time, None)
                    there = there & within(start + j, inputs, None)
                    found = tl.sum(products, 1)[:, None]
                    store_tap(taps_grad, b, last, h, j + TAPS - 1 - tap, there, tap, found)
            new = new + (total,)
        sums = new
    if static_grad is not None:
        for tap in tl.static_range(TAPS):
            place = static_grad + (group.to(tl.int64) * TAPS + tap) * channels + block * WIDTH + c
            tl.store(place, tl.sum(sums[tap], 0)[None, :], mask=c < end)
