"""Random masks for dropout."""

import torch
from torch import Tensor

from .implementation import unfit_for_operators

_STEPS = 2**16


def kept(like: Tensor, p: float) -> tuple[Tensor, float]:
    """Draw which elements dropout keeps.

    On a CPU PyTorch's ``bernoulli_`` draws at least 32 bits an element; this draws 16, in a
    fraction of the time, and rounds p to a multiple of 2^-16.

    Args:
        like: a tensor with the shape and the device of the mask.
        p: probability of dropping an element, in [0, 1).

    Returns:
        A boolean mask, True with the probability that is returned beside it.
    """
    if unfit_for_operators():  # vmap refuses to write one mask for all into its batch
        return torch.rand_like(like, dtype=torch.float32) < 1 - p, 1 - p
    if like.device.type != "cpu" or torch.compiler.is_compiling():
        return torch.empty_like(like, dtype=torch.bool).bernoulli_(1 - p), 1 - p
    steps = max(1, round((1 - p) * _STEPS))
    words = like.new_empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    drawn = words.view(torch.int16)[: like.numel()].view(like.shape)
    return drawn <= steps - 1 - _STEPS // 2, steps / _STEPS
