"""Low-rank short convolutions in Triton: kernels of a tile each.

A program takes a tile of time of one sentence. Kernels of the tile are products of z and ``up``,
made where they are used. No atomics, so that the same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_tensors import load, store

VARYING = ["time", "inputs", "channels", "left"]


@triton.jit
def _load_z(z, b, t, there, RANKS: tl.constexpr, PADDED: tl.constexpr):
    """``[rows, PADDED]``, zero where nothing is ``there``."""
    r = tl.arange(0, PADDED)[None, :]
    return load(z, b, t, t * 0, there[:, None] & (r < RANKS), r).to(tl.float32)


@triton.jit
def _load_up(up, tap, c, channels, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr):
    """``[PADDED, channels]``, of a contiguous tensor."""
    r = tl.arange(0, PADDED)[:, None]
    place = up + (r * TAPS + tap).to(tl.int64) * channels + c
    return tl.load(place, mask=(r < RANKS) & (c < channels), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=VARYING)
def forward_tile(
    x, z, up, y, time, inputs, channels, left, OWN: tl.constexpr, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    z_rows = _load_z(z, b, t, t < time, RANKS, PADDED)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    for tap in tl.static_range(TAPS):
        n = t + tap - left
        there = (t < time) & (n >= 0) & (n < inputs)
        x_rows = load(x, b, n, n * 0, there[:, None] & (c < channels), c).to(tl.float32)
        u = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED)
        w = tl.dot(z_rows, u, input_precision=PRECISION)
        if tap == OWN:
            w += 1.0
        sums += w * x_rows
    store(y, b, t, t * 0, (t < time)[:, None] & (c < channels), c, sums)


@triton.jit(do_not_specialize=VARYING)
def backward_tile(
    x, z, up, grad, x_grad, z_grad, up_grad, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For the same positions the gradients of x, as inputs, and of z, as outputs; and what they
    add to that of ``up``, into ``[tiles, batch, ranks, taps, channels]``."""
    b = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    z_rows = _load_z(z, b, t, t < time, RANKS, PADDED)
    z_sums = tl.zeros([ROWS, PADDED], tl.float32)
    r = tl.arange(0, PADDED)[:, None]
    tile = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + b
    for first in range(0, channels, CHANNELS):
        c = first + tl.arange(0, CHANNELS)[None, :]
        grad_rows = load(grad, b, t, t * 0, (t < time)[:, None] & (c < channels), c).to(tl.float32)
        x_sums = tl.zeros([ROWS, CHANNELS], tl.float32)
        for tap in tl.static_range(TAPS):
            u = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED)
            if x_grad is not None:
                i = t + left - tap
                there = (i >= 0) & (i < time)
                rows = load(grad, b, i, i * 0, there[:, None] & (c < channels), c).to(tl.float32)
                z_there = _load_z(z, b, i, there, RANKS, PADDED)
                w = tl.dot(z_there, u, input_precision=PRECISION)
                if tap == OWN:
                    w += 1.0
                x_sums += w * rows
            n = t + tap - left
            there = (n >= 0) & (n < inputs)
            x_rows = load(x, b, n, n * 0, there[:, None] & (c < channels), c).to(tl.float32)
            products = grad_rows * x_rows
            if z_grad is not None:
                z_sums += tl.dot(products, tl.trans(u), input_precision=PRECISION)
            if up_grad is not None:
                found = tl.dot(tl.trans(z_rows), products, input_precision=PRECISION)
                place = up_grad + ((tile * RANKS + r) * TAPS + tap) * channels + c
                tl.store(place, found, mask=(r < RANKS) & (c < channels))
        if x_grad is not None:
            store(x_grad, b, t, t * 0, (t < inputs)[:, None] & (c < channels), c, x_sums)
    if z_grad is not None:
        ranks = tl.arange(0, PADDED)[None, :]
        store(z_grad, b, t, t * 0, (t < time)[:, None] & (ranks < RANKS), ranks, z_sums)
