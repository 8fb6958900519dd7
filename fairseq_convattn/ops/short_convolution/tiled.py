"""The reference in tiles of time. Kernels are recomputed for the gradients, so memory holds those
of one tile at most. A static kernel is PyTorch's depthwise convolution."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from . import reference

TILE = 128


def convolve(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    """Same contract as :func:`reference.convolve`."""
    if up.size(0) == 1 and up.size(2) > 0:
        return _convolve_with_one_rank(x, z, up[0], left, own)
    pieces, taps = [], up.size(1)
    for start in range(0, z.size(0), TILE):
        z_tile = z[start : start + TILE]
        first = max(0, start - left)
        x_tile = x[first : start - left + z_tile.size(0) + taps - 1]
        arguments = (x_tile, z_tile, up, first - (start - left), own)
        if torch.is_grad_enabled():
            y = checkpoint(
                reference.convolve, *arguments, use_reentrant=False, preserve_rng_state=False
            )
        else:
            y = reference.convolve(*arguments)
        pieces.append(y)
    return torch.cat(pieces)


def _convolve_with_one_rank(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    """y[t, b, c] = z[t, b] sum_k up[k, c] x[t + k - left, b, c], and x as in the reference.

    On a GPU PyTorch may choose cuDNN's gradients, which give the same bits again only with
    ``torch.backends.cudnn.deterministic``. The native and the Triton kernels always do.
    """
    time, taps = z.size(0), up.size(0)
    wide = torch.promote_types(x.dtype, torch.float32)
    right = time + taps - 1 - left - x.size(0)
    padded = F.pad(x.to(wide), (0, 0, 0, 0, left, right))
    kernels = up.t().unsqueeze(1).to(wide)
    y = F.conv1d(padded.permute(1, 2, 0), kernels, groups=up.size(1)).permute(2, 0, 1) * z.to(wide)
    return (y if own < 0 else y + padded[own : own + time]).to(x.dtype)
