"""Short convolutions of low rank in Triton: kernels of a tile of time and a block of channels.

A convolution's kernel is a product of z and ``up``, made where it is used. No atomics, so that the
same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_tensors import load, store

VARYING = ["batch", "time", "inputs", "left"]
MOST_HELD = tl.constexpr(64)  # taps times ranks of z that stay in a block's shared memory


@triton.jit
def _tile(tile, batch, ROWS: tl.constexpr):
    """A sentence and positions of it; tiles of one time follow each other."""
    return (tile % batch).to(tl.int64), tile // batch * ROWS + tl.arange(0, ROWS)


@triton.jit
def _channels(block, CHANNELS: tl.constexpr):
    return block * CHANNELS + tl.arange(0, CHANNELS)[None, :]


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
def _load_z(z, b, t, time, RANKS: tl.constexpr, PADDED: tl.constexpr):
    """``[rows, PADDED]``"""
    return _load_rows(z, b, t, time, tl.arange(0, PADDED)[None, :], RANKS)


@triton.jit
def _load_zs(z, b, last, time, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr):
    """Those of outputs ``last - k``, for every tap k."""
    rows = ()
    for tap in tl.static_range(TAPS):
        rows = rows + (_load_z(z, b, last - tap, time, RANKS, PADDED),)
    return rows


@triton.jit
def _weigh(
    x, zs, up, y, b, t, block, time, inputs, channels, left, STEP: tl.constexpr,
    OWN: tl.constexpr, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w_k x[t + STEP (k - left)]``, a block of channels at ``time`` positions. The
    weights are made of ``zs[k]``, ``[rows, PADDED]``, and up, and ``OWN``'s is one more. For
    the gradient of a convolution's inputs, x is that of its outputs."""
    c = _channels(block, CHANNELS)
    sums = tl.zeros([t.shape[0], CHANNELS], tl.float32)
    for tap in tl.static_range(TAPS):
        up_rows = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED)
        w = tl.dot(zs[tap], up_rows, input_precision=PRECISION)
        if tap == OWN:
            w += 1.0
        x_rows = _load_rows(x, b, t + STEP * (tap - left), inputs, c, channels)
        sums += w * x_rows.to(tl.float32)
    store(y, b, t, t * 0, (t < time)[:, None] & (c < channels), c, sums)


@triton.jit(do_not_specialize=VARYING)
def forward(
    x, z, up, y, batch, time, inputs, channels, left, OWN: tl.constexpr, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w[t, k] x[t + k - left]``, one block of channels after the other."""
    b, t = _tile(tl.program_id(0), batch, ROWS)
    zs = (_load_z(z, b, t, time, RANKS, PADDED),) * TAPS
    for block in tl.range(0, tl.cdiv(channels, CHANNELS), num_stages=STAGES):
        _weigh(
            x, zs, up, y, b, t, block, time, inputs, channels, left, 1, OWN, TAPS, RANKS, PADDED,
            CHANNELS, PRECISION,
        )  # fmt: skip


@triton.jit
def _rounded(products, dtype: tl.constexpr):
    """What kernels' gradients sum, gradients times inputs in float32: in bfloat16 of such inputs,
    else in float32, since they may be beyond float16; of float16 rounded to the digits of tf32, to
    which the hardware would truncate."""
    if dtype == tl.bfloat16:
        products = products.to(tl.bfloat16)
    elif dtype == tl.float16:
        rounded = (products.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
        products = tl.where(tl.abs(products) < float("inf"), rounded, products)
    return products


@triton.jit(do_not_specialize=VARYING)
def backward_x(
    z, up, grad, x_grad, batch, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``x_grad[t] = sum_k w[n, k] grad[n]`` over outputs ``n = t + left - k``."""
    b, t = _tile(tl.program_id(0), batch, ROWS)
    HELD: tl.constexpr = TAPS * PADDED <= MOST_HELD
    held = ()
    if HELD:
        held = _load_zs(z, b, t + left, time, TAPS, RANKS, PADDED)
    for block in tl.range(0, tl.cdiv(channels, CHANNELS), num_stages=STAGES):
        if HELD:
            zs = held
        else:
            zs = _load_zs(z, b, t + left, time, TAPS, RANKS, PADDED)
        _weigh(
            grad, zs, up, x_grad, b, t, block, inputs, time, channels, left, -1, OWN, TAPS, RANKS,
            PADDED, CHANNELS, PRECISION,
        )  # fmt: skip


@triton.jit(do_not_specialize=VARYING)
def backward_up(
    x, z, grad, up_grad, batch, time, inputs, channels, left, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of ``up``: sums over every group-th tile of outputs."""
    blocks = tl.cdiv(channels, CHANNELS)
    group, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    groups = tl.num_programs(0) // blocks
    c = _channels(block, CHANNELS)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums = sums + (tl.zeros([PADDED, CHANNELS], tl.float32),)
    for tile in tl.range(group, batch * tl.cdiv(time, ROWS), groups, num_stages=STAGES):
        b, t = _tile(tile, batch, ROWS)
        grad_rows = _load_rows(grad, b, t, time, c, channels).to(tl.float32)
        z_rows = _load_z(z, b, t, time, RANKS, PADDED)
        new = ()
        for tap in tl.static_range(TAPS):
            x_rows = _load_rows(x, b, t + tap - left, inputs, c, channels)
            products = _rounded(grad_rows * x_rows.to(tl.float32), x_rows.dtype)
            turned = tl.trans(z_rows.to(products.dtype))
            new = new + (tl.dot(turned, products, sums[tap], input_precision=PRECISION),)
        sums = new
    r = tl.arange(0, PADDED)[:, None]
    for tap in tl.static_range(TAPS):
        place = up_grad + ((group.to(tl.int64) * RANKS + r) * TAPS + tap) * channels + c
        tl.store(place, sums[tap], mask=(r < RANKS) & (c < channels))


@triton.jit(do_not_specialize=VARYING)
def backward_z(
    x, up, grad, z_grad, batch, time, inputs, channels, left, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``z_grad[t]``, a sum over taps and channels."""
    b, t = _tile(tl.program_id(0), batch, ROWS)
    sums = tl.zeros([ROWS, PADDED], tl.float32)
    for first in tl.range(0, channels, CHANNELS, num_stages=STAGES):
        c = first + tl.arange(0, CHANNELS)[None, :]
        grad_rows = _load_rows(grad, b, t, time, c, channels).to(tl.float32)
        for tap in tl.static_range(TAPS):
            x_rows = _load_rows(x, b, t + tap - left, inputs, c, channels)
            products = _rounded(grad_rows * x_rows.to(tl.float32), x_rows.dtype)
            up_rows = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED).to(products.dtype)
            sums += tl.dot(products, tl.trans(up_rows), input_precision=PRECISION)
    r = tl.arange(0, PADDED)[None, :]
    store(z_grad, b, t, t * 0, (t < time)[:, None] & (r < RANKS), r, sums)
