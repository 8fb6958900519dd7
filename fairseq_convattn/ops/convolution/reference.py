"""The specification of both convolutions: the paper's sum, one tap at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(x: Tensor, taps: Tensor, time: int, left: int) -> Tensor:
    """y[i, b, c] = sum_k taps[(i, b,) head(c), k] x[i + k - left, b, c].

    Args:
        x: ``[inputs, batch, channels]``; zeros before and after.
        taps: ``[heads, kernel_size]`` or ``[time, batch, heads, kernel_size]``.
        time: how many outputs there are.
        left: where the first output stands: how many taps of its kernel lie before the
            first input; negative when inputs precede its kernel.

    Returns:
        ``[time, batch, channels]`` in the dtype of ``x``; the sum runs in float32 at least.
    """
    heads, kernel_size = taps.shape[-2:]
    right = time + kernel_size - 1 - left - x.size(0)
    padded = F.pad(x, (0, 0, 0, 0, left, right)).unflatten(2, (heads, -1))
    accumulator = torch.promote_types(x.dtype, torch.float32)
    windows = (padded[k : k + time].to(accumulator) for k in range(kernel_size))
    weights = taps.to(accumulator).unsqueeze(-1).unbind(-2)
    y = sum(w * window for w, window in zip(weights, windows, strict=True))
    return y.to(x.dtype).flatten(2)
