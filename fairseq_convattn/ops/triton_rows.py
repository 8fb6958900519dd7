"""Loads and stores of runs of neighbouring positions, shared by the kernels of few taps.

A program takes several runs. Rows of all runs are loaded one position after the other, ``[runs,
channels]``: so laid out, a thread has the rows that its neighbouring outputs share, and loads each
once.
"""

import triton
import triton.language as tl

from .triton_tensors import at


@triton.jit
def further(place, steps, stride):
    """Addresses some strides further, which 32 bits need not hold."""
    return place + tl.full([1, 1], steps, tl.int64) * stride


@triton.jit
def within(t, time, real):
    """``[runs, 1]``: which positions t there are, of the runs that are ``real``; None: of all."""
    there = t.to(tl.uint32) < time.to(tl.uint32)
    if real is not None:
        there = there & real
    return there[:, None]


@triton.jit
def load_rows(x, b, start, h, time, real, c, end, COUNT: tl.constexpr):
    """``COUNT`` rows from ``start`` on, ``[runs, channels]`` each, zero where there are none."""
    place, rows = at(x, b, start, h)[:, None] + c.to(tl.int64) * x.c, ()
    for j in tl.static_range(COUNT):
        there = within(start + j, time, real) & (c < end)
        rows = rows + (tl.load(further(place, j, x.t), mask=there, other=0.0),)
    return rows


@triton.jit
def store_rows(y, b, start, h, time, real, c, end, rows, COUNT: tl.constexpr):
    place = at(y, b, start, h)[:, None] + c.to(tl.int64) * y.c
    for j in tl.static_range(COUNT):
        there = within(start + j, time, real) & (c < end)
        tl.store(further(place, j, y.t), rows[j].to(y.data.dtype.element_ty), mask=there)


@triton.jit
def load_taps(taps, b, start, h, j, there, TAPS: tl.constexpr):
    """All taps of positions ``start + j``, ``[runs, 1]`` each, zero where nothing is ``there``."""
    place, row = further(at(taps, b, start, h)[:, None], j, taps.t), ()
    for tap in tl.static_range(TAPS):
        row = row + (tl.load(further(place, tap, taps.c), mask=there, other=0),)
    return row


@triton.jit
def load_wide_taps(taps, b, start, h, j, there, TAPS: tl.constexpr):
    """``load_taps`` in float32."""
    given, row = load_taps(taps, b, start, h, j, there, TAPS), ()
    for tap in tl.static_range(TAPS):
        row = row + (given[tap].to(tl.float32),)
    return row


@triton.jit
def store_tap(taps, b, start, h, j, there, tap, values):
    place = further(at(taps, b, start, h)[:, None], j, taps.t)
    place = further(place, tap, taps.c)
    tl.store(place, values.to(taps.data.dtype.element_ty), mask=there)
