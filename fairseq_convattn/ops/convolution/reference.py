"""The specification of both convolutions: the paper's sum, one tap at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..taps import tap_weights


def convolve(
    x: Tensor,
    taps: Tensor,
    time: int,
    left: int,
    *,
    softmax: bool = False,
    kept: Tensor | None = None,
    keep: float = 1.0,
) -> Tensor:
    """y[i, b, c] = sum_k w[(i, b,) head(c), k] x[i + k - left, b, c], w of :func:`tap_weights`.

    Args:
        x: ``[inputs, batch, channels]``; zeros before and after.
        taps: ``[heads, kernel_size]`` or ``[time, batch, heads, kernel_size]``.
        time: how many outputs there are.
        left: where the first output stands: how many taps of its kernel lie before the
            first input; negative when inputs precede its kernel.
        softmax, kept, keep: see :func:`tap_weights`.

    Returns:
        ``[time, batch, channels]`` in the dtype of ``x``; sums, those of gradients too, run in
        float32 at least.
    """
    heads, kernel_size = taps.shape[-2:]
    right = time + kernel_size - 1 - left - x.size(0)
    accumulator = torch.promote_types(x.dtype, torch.float32)
    padded = F.pad(x.to(accumulator), (0, 0, 0, 0, left, right)).unflatten(2, (heads, -1))
    windows = (padded[k : k + time] for k in range(kernel_size))
    w = tap_weights(taps, softmax, kept, keep).to(accumulator).unsqueeze(-1).unbind(-2)
    y = sum(tap * window for tap, window in zip(w, windows, strict=True))
    return y.to(x.dtype).flatten(2)
