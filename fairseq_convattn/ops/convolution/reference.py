"""The specification of both convolutions: the paper's sum, one tap at a time."""

import torch
from torch import Tensor


def convolve(padded: Tensor, taps: Tensor) -> Tensor:
    """y[i, b, h, r] = sum_k taps[(i, b,) h, k] padded[i + k, b, h, r].

    Args:
        padded: ``[time + kernel_size - 1, batch, heads, head_dim]``, zeros included.
        taps: ``[heads, kernel_size]`` or ``[time, batch, heads, kernel_size]``.

    Returns:
        ``[time, batch, heads, head_dim]`` in the dtype of ``padded``; the sum runs in
        float32 at least.
    """
    kernel_size = taps.size(-1)
    time = padded.size(0) - kernel_size + 1
    accumulator = torch.promote_types(padded.dtype, torch.float32)
    windows = (padded[k : k + time].to(accumulator) for k in range(kernel_size))
    weights = taps.to(accumulator).unsqueeze(-1).unbind(-2)
    return sum(w * x for w, x in zip(weights, windows, strict=True)).to(padded.dtype)
