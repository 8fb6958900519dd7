"""Short convolutions of one position, as in decoding, where a few operations of PyTorch take less
time than the call of a kernel."""

import torch
from torch import Tensor

from ..implementation import requested


def step_pays(x: Tensor, kernels: Tensor) -> bool:
    """Whether :func:`step` is the fastest for an input ``[time, batch, channels]``, rounds as
    kernels do, and no other implementation was asked for."""
    pays = x.size(0) == 1 and x.device.type == "cpu" and requested(None) is None
    exact = kernels.dtype in (torch.float32, torch.float64)
    return pays and exact and not torch.is_autocast_enabled("cpu")


def step(x: Tensor, kernels: Tensor, tail: Tensor, residual: bool = True) -> tuple[Tensor, Tensor]:
    """Continue a causal short convolution by one position.

    Args:
        x: ``[1, batch, channels]``.
        kernels: ``[W, batch or 1, channels]``.
        tail: the inputs before x, ``[n < W, batch, channels]``.
        residual: whether x is added.

    Returns:
        ``[1, batch, channels]`` and the next tail.
    """
    window = torch.cat([tail, x])
    n, taps = window.size(0), kernels.size(0)
    y = (window * kernels[taps - n :]).sum(0, keepdim=True)
    return (x + y if residual else y), window[max(0, n + 1 - taps) :]
