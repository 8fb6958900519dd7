"""The specification of low-rank short convolutions: the paper's sum."""

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    """y[t, b, c] = sum_k (sum_r z[t, b, r] up[r, k, c]) x[t + k - left, b, c], and of those x the
    one of k = ``own``, if that is not -1.

    Args:
        x: ``[inputs, batch, channels]``; zeros before and after.
        z: ``[time, batch, ranks]``.
        up: ``[ranks, taps, channels]``.
        left: how many taps of the first output's kernel lie before the first input, from 0 to
            taps - 1.

    Returns:
        ``[time, batch, channels]`` in the dtype of ``x``; sums run in float32 at least.
    """
    time, taps = z.size(0), up.size(1)
    wide = torch.promote_types(x.dtype, torch.float32)
    right = time + taps - 1 - left - x.size(0)
    padded = F.pad(x.to(wide), (0, 0, 0, 0, left, right))
    windows = torch.stack([padded[k : k + time] for k in range(taps)])
    kernels = torch.einsum("tbr,rkc->ktbc", z.to(wide), up.to(wide))
    y = (kernels * windows).sum(0)
    return (y if own < 0 else y + windows[own]).to(x.dtype)
