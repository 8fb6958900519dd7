"""Inputs of convolutions' kernels, which are compared with the reference in float64."""

import torch
from kernel_cases import with_gradients

from fairseq_convattn.ops.convolution import reference

KINDS = ("lightweight", "dynamic")
BATCH, HEADS = 1, 2
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def inputs(
    kind, time, kernel_size, head_dim, dtype=torch.float32, batch=BATCH, heads=HEADS, length=None
):
    """``[length, batch, channels]`` and taps for ``time`` outputs."""
    torch.manual_seed(1000 * time + 10 * kernel_size + head_dim)
    shape = (time, batch, heads, kernel_size) if kind == "dynamic" else (heads, kernel_size)
    x = torch.randn(time if length is None else length, batch, heads * head_dim)
    return x.to(dtype), torch.randn(shape).to(dtype)


def dropconnect(taps, keep=0.7):
    return {"kept": torch.rand(taps.shape, device=taps.device) < keep, "keep": keep}


def compare(kernels, x, taps, time, left, tolerance=None, **options):
    """``kernels.convolve`` and the reference: outputs and gradients, relative to the largest."""
    grad = torch.randn(time, *x.shape[1:], device=x.device).to(x.dtype)
    actual = with_gradients(kernels.convolve, (x, taps), grad, time, left, **options)
    wide = x.double(), taps.double()
    expected = with_gradients(reference.convolve, wide, grad.double(), time, left, **options)
    tolerance = tolerance or max(TOLERANCES[x.dtype], TOLERANCES[taps.dtype])
    for a, e, given in zip(actual, expected, (x, x, taps), strict=True):
        assert a.dtype == given.dtype and a.shape == e.shape and a.isfinite().all()
        if e.numel():
            error = (a.double() - e).abs().max() / max(1, e.abs().max())
            assert error <= tolerance, error
