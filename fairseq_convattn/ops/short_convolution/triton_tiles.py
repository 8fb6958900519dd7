"""Short convolutions of low rank in Triton: kernels of a tile of time and a block of channels.

A convolution's kernel is a product of z and ``up``, made where it is used. No atomics, so that the
same inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_rows import load_rows, store_rows
from .triton_runs import VARYING, runs

MOST_HELD = tl.constexpr(64)  # taps times ranks of z that a program holds


@triton.jit
def _channels(block, CHANNELS: tl.constexpr):
    return block * CHANNELS + tl.arange(0, CHANNELS)[None, :]


@triton.jit
def _load(x, b, start, time, c, end, COUNT: tl.constexpr):
    return load_rows(x, b, start, start * 0, time, None, c, end, COUNT)


@triton.jit
def _load_up(up, tap, c, channels, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr):
    """``[PADDED, channels]``, of a contiguous tensor."""
    r = tl.arange(0, PADDED)[:, None]
    place = up + (r * TAPS + tap).to(tl.int64) * channels + c
    return tl.load(place, mask=(r < RANKS) & (c < channels), other=0.0)


@triton.jit
def _load_zs(z, b, start, time, RANKS: tl.constexpr, PADDED: tl.constexpr, COUNT: tl.constexpr):
    """``[runs, PADDED]`` of ``COUNT`` positions."""
    return _load(z, b, start, time, tl.arange(0, PADDED)[None, :], RANKS, COUNT)


@triton.jit
def _weigh(
    zs, up, rows, c, channels, FORWARD: tl.constexpr, OWN: tl.constexpr, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, RUN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over taps of rows times weights, made of zs and ``up``; ``OWN``'s is one more. Forward,
    zs are of the sums' positions and rows are inputs; backward, both are of outputs."""
    sums = ()
    for _ in tl.static_range(RUN):
        sums = sums + (tl.zeros(rows[0].shape, tl.float32),)
    for tap in tl.static_range(TAPS):
        up_rows, more = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED), ()
        for j in tl.static_range(RUN):
            if FORWARD:
                w = tl.dot(zs[j], up_rows, input_precision=PRECISION)
                x_rows = rows[j + tap]
            else:
                w = tl.dot(zs[j + TAPS - 1 - tap], up_rows, input_precision=PRECISION)
                x_rows = rows[j + TAPS - 1 - tap]
            if tap == OWN:
                w += 1.0
            more = more + (sums[j] + w * x_rows.to(tl.float32),)
        sums = more
    return sums


@triton.jit(do_not_specialize=VARYING)
def forward(
    x, z, up, y, batch, time, inputs, channels, left, OWN: tl.constexpr, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w[t, k] x[t + k - left]``, one block of channels after the other."""
    b, start = runs(tl.program_id(0), batch, RUNS, RUN)
    zs = _load_zs(z, b, start, time, RANKS, PADDED, RUN)
    for block in tl.range(0, tl.cdiv(channels, CHANNELS), num_stages=STAGES):
        c = _channels(block, CHANNELS)
        rows = _load(x, b, start - left, inputs, c, channels, RUN + TAPS - 1)
        sums = _weigh(zs, up, rows, c, channels, True, OWN, TAPS, RANKS, PADDED, RUN, PRECISION)
        store_rows(y, b, start, start * 0, time, None, c, channels, sums, RUN)


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
    TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr, RUNS: tl.constexpr,
    RUN: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``x_grad[t] = sum_k w[n, k] grad[n]`` over outputs ``n = t + left - k``."""
    b, start = runs(tl.program_id(0), batch, RUNS, RUN)
    first = start + left - (TAPS - 1)
    COUNT: tl.constexpr = RUN + TAPS - 1
    HELD: tl.constexpr = TAPS * PADDED <= MOST_HELD
    held = ()
    if HELD:
        held = _load_zs(z, b, first, time, RANKS, PADDED, COUNT)
    for block in tl.range(0, tl.cdiv(channels, CHANNELS), num_stages=STAGES):
        if HELD:
            zs = held
        else:
            zs = _load_zs(z, b, first, time, RANKS, PADDED, COUNT)
        c = _channels(block, CHANNELS)
        rows = _load(grad, b, first, time, c, channels, COUNT)
        sums = _weigh(zs, up, rows, c, channels, False, OWN, TAPS, RANKS, PADDED, RUN, PRECISION)
        store_rows(x_grad, b, start, start * 0, inputs, None, c, channels, sums, RUN)


@triton.jit(do_not_specialize=VARYING)
def backward_up(
    x, z, grad, up_grad, batch, time, inputs, channels, left, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of ``up``: sums over every group-th tile of outputs."""
    blocks = tl.cdiv(channels, CHANNELS)
    group, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    groups = tl.num_programs(0) // blocks
    c = _channels(block, CHANNELS)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums = sums + (tl.zeros([PADDED, CHANNELS], tl.float32),)
    tiles = batch * tl.cdiv(time, RUNS * RUN)
    for tile in tl.range(group, tiles, groups, num_stages=STAGES):
        b, start = runs(tile, batch, RUNS, RUN)
        grad_rows = _load(grad, b, start, time, c, channels, RUN)
        zs = _load_zs(z, b, start, time, RANKS, PADDED, RUN)
        rows = _load(x, b, start - left, inputs, c, channels, RUN + TAPS - 1)
        new = ()
        for tap in tl.static_range(TAPS):
            total = sums[tap]
            for j in tl.static_range(RUN):
                products = grad_rows[j].to(tl.float32) * rows[j + tap].to(tl.float32)
                products = _rounded(products, rows[0].dtype)
                turned = tl.trans(zs[j].to(products.dtype))
                total = tl.dot(turned, products, total, input_precision=PRECISION)
            new = new + (total,)
        sums = new
    r = tl.arange(0, PADDED)[:, None]
    for tap in tl.static_range(TAPS):
        place = up_grad + ((group.to(tl.int64) * RANKS + r) * TAPS + tap) * channels + c
        tl.store(place, sums[tap], mask=(r < RANKS) & (c < channels))


@triton.jit(do_not_specialize=VARYING)
def backward_z(
    x, up, grad, z_grad, batch, time, inputs, channels, left, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``z_grad[t]``, a sum over taps and channels."""
    b, start = runs(tl.program_id(0), batch, RUNS, RUN)
    sums = ()
    for _ in tl.static_range(RUN):
        sums = sums + (tl.zeros([RUNS, PADDED], tl.float32),)
    for block in tl.range(0, tl.cdiv(channels, CHANNELS), num_stages=STAGES):
        c = _channels(block, CHANNELS)
        grad_rows = _load(grad, b, start, time, c, channels, RUN)
        rows = _load(x, b, start - left, inputs, c, channels, RUN + TAPS - 1)
        for tap in tl.static_range(TAPS):
            up_rows, more = _load_up(up, tap, c, channels, TAPS, RANKS, PADDED), ()
            for j in tl.static_range(RUN):
                products = grad_rows[j].to(tl.float32) * rows[j + tap].to(tl.float32)
                products = _rounded(products, rows[0].dtype)
                turned = tl.trans(up_rows.to(products.dtype))
                more = more + (tl.dot(products, turned, sums[j], input_precision=PRECISION),)
            sums = more
    r = tl.arange(0, PADDED)[None, :]
    store_rows(z_grad, b, start, start * 0, time, None, r, RANKS, sums, RUN)
