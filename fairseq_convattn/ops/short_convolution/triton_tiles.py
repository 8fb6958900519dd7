"""Low-rank short convolutions in Triton: kernels of a tile each.

A program takes a tile of time of one sentence, or a group of tiles for the gradient of ``up``.
Kernels of the tile are products of z and ``up``, made where they are used. No atomics, so that the
same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_tensors import load, store

VARYING = ["batch", "rows", "time", "inputs", "left"]


@triton.jit
def _tile(tile, batch, ROWS: tl.constexpr):
    """A sentence and positions of it; tiles of one time follow each other."""
    return (tile % batch).to(tl.int64), tile // batch * ROWS + tl.arange(0, ROWS)


@triton.jit
def _tile_and_channels(channels, CHANNELS: tl.constexpr):
    """Of this program; programs of one tile follow each other, so that rows are read whole."""
    blocks = tl.cdiv(channels, CHANNELS)
    c = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    return tl.program_id(0) // blocks, c


@triton.jit
def _load_rows(x, b, t, time, c, channels):
    """``[rows, channels]`` at positions t, zero outside of the sentence."""
    there = (t >= 0) & (t < time)
    return load(x, b, t, t * 0, there[:, None] & (c < channels), c)


@triton.jit
def _load_up(up, tap, c, channels, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr):
    """``[PADDED, channels]``, of a contiguous tensor."""
    r = tl.arange(0, PADDED)[:, None]
    place = up + (r * TAPS + tap).to(tl.int64) * channels + c
    return tl.load(place, mask=(r < RANKS) & (c < channels), other=0.0)


@triton.jit
def _convolve(
    x, z, up, y, batch, rows, time, inputs, channels, left, OWN: tl.constexpr,
    BACKWARD: tl.constexpr, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, c = _tile_and_channels(channels, CHANNELS)
    b, t = _tile(tile, batch, ROWS)
    r = tl.arange(0, PADDED)[None, :]
    z_rows = _load_rows(z, b, t, time, r, RANKS)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    for tap in tl.static_range(TAPS):
        n = t + tap - left
        if BACKWARD:
            n = t + left - tap
            z_rows = _load_rows(z, b, n, time, r, RANKS)
        u = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED)
        w = tl.dot(z_rows, u, input_precision=PRECISION)
        if tap == OWN:
            w += 1.0
        sums += w * _load_rows(x, b, n, inputs, c, channels).to(tl.float32)
    store(y, b, t, t * 0, (t < rows)[:, None] & (c < channels), c, sums)


@triton.jit(do_not_specialize=VARYING)
def forward(
    x, z, up, y, batch, rows, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w[t, k] x[t + k - left]``"""
    _convolve(
        x, z, up, y, batch, rows, time, inputs, channels, left, OWN, False, TAPS, RANKS, PADDED,
        ROWS, CHANNELS, PRECISION,
    )  # fmt: skip


@triton.jit(do_not_specialize=VARYING)
def backward_x(
    x, z, up, y, batch, rows, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of x, the gradient of the outputs: ``y[t] = sum_k w[t + left - k, k] x[t + left - k]``"""
    _convolve(
        x, z, up, y, batch, rows, time, inputs, channels, left, OWN, True, TAPS, RANKS, PADDED,
        ROWS, CHANNELS, PRECISION,
    )  # fmt: skip


@triton.jit
def _products(grad, x, b, t, tap, time, inputs, c, channels, left):
    """What kernels' gradients sum, at outputs t: in bfloat16 of such inputs, else in float32,
    since a gradient times an input may be beyond float16; of float16 rounded to the digits of
    tf32, to which the hardware would truncate."""
    of_outputs = _load_rows(grad, b, t, time, c, channels).to(tl.float32)
    of_inputs = _load_rows(x, b, t + tap - left, inputs, c, channels)
    products = of_outputs * of_inputs.to(tl.float32)
    if of_inputs.dtype == tl.bfloat16:
        products = products.to(tl.bfloat16)
    elif of_inputs.dtype == tl.float16:
        rounded = (products.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
        products = tl.where(tl.abs(products) < float("inf"), rounded, products)
    return products


@triton.jit(do_not_specialize=VARYING)
def backward_z(
    x, up, grad, z_grad, batch, time, inputs, channels, left, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    b, t = _tile(tl.program_id(0), batch, ROWS)
    sums = tl.zeros([ROWS, PADDED], tl.float32)
    for first in range(0, channels, CHANNELS):
        c = first + tl.arange(0, CHANNELS)[None, :]
        for tap in tl.static_range(TAPS):
            products = _products(grad, x, b, t, tap, time, inputs, c, channels, left)
            u = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED).to(products.dtype)
            sums += tl.dot(products, tl.trans(u), input_precision=PRECISION)
    r = tl.arange(0, PADDED)[None, :]
    store(z_grad, b, t, t * 0, (t < time)[:, None] & (r < RANKS), r, sums)


@triton.jit(do_not_specialize=VARYING)
def backward_up(
    x, z, grad, up_grad, batch, time, inputs, channels, left, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one tap: over every group-th tile, into ``[groups, ranks, taps, channels]``. Programs of
    one group follow each other, so that the taps find x, z and the gradient in the cache."""
    part, c = _tile_and_channels(channels, CHANNELS)
    group, tap = part // TAPS, part % TAPS
    groups = tl.num_programs(0) // tl.cdiv(channels, CHANNELS) // TAPS
    sums = tl.zeros([PADDED, CHANNELS], tl.float32)
    for tile in range(group, batch * tl.cdiv(time, ROWS), groups):
        b, t = _tile(tile, batch, ROWS)
        products = _products(grad, x, b, t, tap, time, inputs, c, channels, left)
        z_rows = _load_rows(z, b, t, time, tl.arange(0, PADDED)[None, :], RANKS)
        z_rows = z_rows.to(products.dtype)
        sums += tl.dot(tl.trans(z_rows), products, input_precision=PRECISION)
    r = tl.arange(0, PADDED)[:, None]
    place = up_grad + ((group.to(tl.int64) * RANKS + r) * TAPS + tap) * channels + c
    tl.store(place, sums, mask=(r < RANKS) & (c < channels))
