"""Short convolutions in Triton: kernels of a tile of time and a block of channels.

A kernel is the sum of taps of the block's head, if it has any, and of a product of z and ``up``,
made where it is used; without z it is ``up`` itself, a static kernel. No atomics, so that the same
inputs give the same bits.
"""

import triton
import triton.language as tl

from ..triton_tensors import at, load, store

VARYING = ["batch", "time", "inputs", "left"]
MOST_HELD = tl.constexpr(64)  # taps times ranks of z that stay in a block's shared memory


@triton.jit
def _tile(tile, batch, ROWS: tl.constexpr):
    """A sentence and positions of it; tiles of one time follow each other."""
    return (tile % batch).to(tl.int64), tile // batch * ROWS + tl.arange(0, ROWS)


@triton.jit
def _channels(block, channels, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """The channels of a block, and where they end."""
    end = tl.minimum((block + 1) * WIDTH, channels)
    return block * WIDTH + tl.arange(0, CHANNELS)[None, :], end


@triton.jit
def _load_rows(x, b, t, time, c, end):
    """``[rows, channels]`` at positions t, zero outside of the sentence and from ``end`` on."""
    there = (t >= 0) & (t < time)
    return load(x, b, t, t * 0, there[:, None] & (c < end), c)


@triton.jit
def _load_up(
    up, tap, c, end, channels, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr
):
    """``[PADDED, channels]``, of a contiguous tensor."""
    r = tl.arange(0, PADDED)[:, None]
    place = up + (r * TAPS + tap).to(tl.int64) * channels + c
    return tl.load(place, mask=(r < RANKS) & (c < end), other=0.0)


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
def _tap_of(taps, b, t, time, h, tap):
    """``[rows, 1]`` addresses, and which of them are there."""
    place = at(taps, b, t, t * 0 + h) + tl.full([1], tap, tl.int64) * taps.c
    return place[:, None], ((t >= 0) & (t < time))[:, None]


@triton.jit
def _weights(z_rows, up_rows, taps, b, t, time, h, tap, PRECISION: tl.constexpr):
    """What tap ``tap`` of the kernels of outputs t weighs, for every channel."""
    if z_rows is None:
        w = up_rows.to(tl.float32)
    else:
        w = tl.dot(z_rows, up_rows, input_precision=PRECISION)
    if taps is not None:
        place, there = _tap_of(taps, b, t, time, h, tap)
        w += tl.load(place, mask=there, other=0.0).to(tl.float32)
    return w


@triton.jit
def _weigh(
    x, taps, zs, up, y, b, t, block, time, inputs, channels, left, STEP: tl.constexpr,
    OWN: tl.constexpr, TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w_k x[t + STEP (k - left)]``, a block of channels at ``time`` positions. The
    weights are made of ``zs[k]``, ``[rows, PADDED]``, up and taps, and ``OWN``'s is one more. For
    the gradient of a convolution's inputs, x is that of its outputs."""
    ROWS: tl.constexpr = t.shape[0]
    c, end = _channels(block, channels, WIDTH, CHANNELS)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    for tap in tl.static_range(TAPS):
        up_rows = _load_up(up, tap, c, end, channels, TAPS, RANKS, PADDED)
        w = _weights(zs[tap], up_rows, taps, b, t, time, block, tap, PRECISION)
        if tap == OWN:
            w += 1.0
        x_rows = _load_rows(x, b, t + STEP * (tap - left), inputs, c, end)
        sums += w * x_rows.to(tl.float32)
    store(y, b, t, t * 0, (t < time)[:, None] & (c < end), c, sums)


@triton.jit(do_not_specialize=VARYING)
def forward(
    x, taps, z, up, y, batch, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``y[t] = sum_k w[t, k] x[t + k - left]``, of a block of channels or, of low rank, of all one
    after the other."""
    blocks = tl.cdiv(channels, WIDTH)
    if z is None:
        tile, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
        b, t = _tile(tile, batch, ROWS)
        _weigh(
            x, taps, (None,) * TAPS, up, y, b, t, block, time, inputs, channels, left, 1, OWN, TAPS,
            RANKS, PADDED, WIDTH, CHANNELS, PRECISION,
        )  # fmt: skip
    else:
        b, t = _tile(tl.program_id(0), batch, ROWS)
        zs = (_load_z(z, b, t, time, RANKS, PADDED),) * TAPS
        for block in tl.range(0, blocks, num_stages=STAGES):
            _weigh(
                x, taps, zs, up, y, b, t, block, time, inputs, channels, left, 1, OWN, TAPS, RANKS,
                PADDED, WIDTH, CHANNELS, PRECISION,
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


@triton.jit
def _store_sums(
    sums, up_grad, group, c, end, channels, TAPS: tl.constexpr, RANKS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """``[PADDED, channels]`` of every tap into ``[groups, ranks, taps, channels]``."""
    r = tl.arange(0, PADDED)[:, None]
    for tap in tl.static_range(TAPS):
        place = up_grad + ((group.to(tl.int64) * RANKS + r) * TAPS + tap) * channels + c
        tl.store(place, sums[tap], mask=(r < RANKS) & (c < end))


@triton.jit(do_not_specialize=VARYING)
def backward(
    x, taps, up, grad, x_grad, taps_grad, up_grad, batch, time, inputs, channels, left,
    OWN: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Without z, of every group-th tile of inputs t, whose outputs are ``n = t + left - k``:
    ``x_grad[t] = sum_k w[n, k] grad[n]``, ``taps_grad[n, k]``, a sum over channels, and that of
    ``up``, a sum over positions."""
    blocks = tl.cdiv(channels, WIDTH)  # side by side, so that rows are read whole
    group, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    groups = tl.num_programs(0) // blocks
    c, end = _channels(block, channels, WIDTH, CHANNELS)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums = sums + (tl.zeros([ROWS, CHANNELS], tl.float32),)
    for tile in tl.range(group, batch * tl.cdiv(inputs, ROWS), groups):
        b, t = _tile(tile, batch, ROWS)
        x_rows = _load_rows(x, b, t, inputs, c, end).to(tl.float32)
        x_sums = tl.zeros([ROWS, CHANNELS], tl.float32)
        new = ()
        for tap in tl.static_range(TAPS):
            n = t + left - tap
            grad_rows = _load_rows(grad, b, n, time, c, end).to(tl.float32)
            products = grad_rows * x_rows
            if x_grad is not None:
                up_rows = _load_up(up, tap, c, end, channels, TAPS, 1, 1)
                w = _weights(None, up_rows, taps, b, n, time, block, tap, None)
                if tap == OWN:
                    w += 1.0
                x_sums += w * grad_rows
            if taps_grad is not None:
                place, there = _tap_of(taps_grad, b, n, time, block, tap)
                found = tl.sum(products, 1)[:, None].to(taps_grad.data.dtype.element_ty)
                tl.store(place, found, mask=there & (t < inputs)[:, None])
            if up_grad is not None:
                new = new + (sums[tap] + products,)
        if up_grad is not None:
            sums = new
        if x_grad is not None:
            store(x_grad, b, t, t * 0, (t < inputs)[:, None] & (c < end), c, x_sums)
    if up_grad is not None:
        found = ()
        for tap in tl.static_range(TAPS):
            found = found + (tl.sum(sums[tap], 0)[None, :],)
        _store_sums(found, up_grad, group, c, end, channels, TAPS, 1, 1)


@triton.jit(do_not_specialize=VARYING)
def backward_x(
    z, up, grad, x_grad, batch, time, inputs, channels, left, OWN: tl.constexpr,
    TAPS: tl.constexpr, RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of low rank, ``x_grad[t] = sum_k w[n, k] grad[n]`` over outputs ``n = t + left - k``."""
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
            grad, None, zs, up, x_grad, b, t, block, inputs, time, channels, left, -1, OWN, TAPS,
            RANKS, PADDED, CHANNELS, CHANNELS, PRECISION,
        )  # fmt: skip


@triton.jit(do_not_specialize=VARYING)
def backward_up(
    x, z, grad, up_grad, batch, time, inputs, channels, left, TAPS: tl.constexpr,
    RANKS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of ``up``, of low rank: sums over every group-th tile of outputs."""
    blocks = tl.cdiv(channels, CHANNELS)
    group, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    groups = tl.num_programs(0) // blocks
    c, end = _channels(block, channels, CHANNELS, CHANNELS)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums = sums + (tl.zeros([PADDED, CHANNELS], tl.float32),)
    for tile in tl.range(group, batch * tl.cdiv(time, ROWS), groups, num_stages=STAGES):
        b, t = _tile(tile, batch, ROWS)
        grad_rows = _load_rows(grad, b, t, time, c, end).to(tl.float32)
        z_rows = _load_z(z, b, t, time, RANKS, PADDED)
        new = ()
        for tap in tl.static_range(TAPS):
            x_rows = _load_rows(x, b, t + tap - left, inputs, c, end)
            products = _rounded(grad_rows * x_rows.to(tl.float32), x_rows.dtype)
            turned = tl.trans(z_rows.to(products.dtype))
            new = new + (tl.dot(turned, products, sums[tap], input_precision=PRECISION),)
        sums = new
    _store_sums(sums, up_grad, group, c, end, channels, TAPS, RANKS, PADDED)


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
            up_rows = _load_up(up, tap, c, channels, channels, TAPS, RANKS, PADDED).to(
                products.dtype
            )
            sums += tl.dot(products, tl.trans(up_rows), input_precision=PRECISION)
    r = tl.arange(0, PADDED)[None, :]
    store(z_grad, b, t, t * 0, (t < time)[:, None] & (r < RANKS), r, sums)
