"""The reference in tiles of time. Kernels are recomputed for the gradients, so memory holds those
of one tile at most."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from . import reference

TILE = 128


def convolve(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    """Same contract as :func:`reference.convolve`."""
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
