"""Both convolutions as products with small band matrices, one per tile of time.

A tile of ``TILE`` outputs reads ``TILE + kernel_size - 1`` inputs, so memory grows
linearly with time, and each tile is one matrix product per head. Values that are not finite
stay in their sentence, but may spread over the whole tiles that read them, since 0 x NaN is NaN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..taps import tap_weights

TILE = 32


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
    """Same contract as :func:`reference.convolve`."""
    taps = tap_weights(taps, softmax, kept, keep)
    heads, kernel_size = taps.shape[-2:]
    tile = min(TILE, time)
    missing = -time % tile
    right = time + missing + kernel_size - 1 - left - x.size(0)
    padded = F.pad(x, (0, 0, 0, 0, left, right)).unflatten(2, (heads, -1))
    windows = padded.unfold(0, tile + kernel_size - 1, tile)
    # [tiles, batch, heads, head_dim, tile + kernel_size - 1]
    output = _band(taps, tile, missing).to(x.dtype) @ windows.transpose(-1, -2)
    output = output.permute(0, 3, 1, 2, 4).flatten(0, 1)  # [time, batch, heads, head_dim]
    return output[:time].flatten(2)


def _band(taps: Tensor, tile: int, missing: int) -> Tensor:
    """Band matrices ``[(tiles, batch,) heads, tile, tile + kernel_size - 1]``: the taps
    of output i start in column i.
    """
    if taps.dim() == 2:  # one kernel for every position
        rows = taps.unsqueeze(1).expand(-1, tile, -1)
    else:
        rows = F.pad(taps, (0, 0, 0, 0, 0, 0, 0, missing))
        rows = rows.unflatten(0, (-1, tile)).permute(0, 2, 3, 1, 4)
    return _skew(rows)


def _skew(rows: Tensor) -> Tensor:
    """Shift row i of ``[..., n, k]`` right by i, giving ``[..., n, n + k - 1]``."""
    n, k = rows.shape[-2:]
    flat = F.pad(rows, (0, n)).flatten(-2)
    return torch.narrow(flat, -1, 0, n * (n + k - 1)).unflatten(-1, (n, n + k - 1))
