"""Short convolutions of one position, as in decoding, where a few operations of PyTorch take less
time than the call of a kernel."""

import torch
from torch import Tensor

from ..convolution.past import continued
from ..implementation import requested

MOST = 65_536  # inputs; with more, the kernels are as fast


def step_pays(x: Tensor, *kernels: Tensor) -> bool:
    """Whether :func:`step` is the fastest for an input ``[time, batch, channels]`` and what its
    kernels are made of, and is not ruled out: by another implementation that is asked for, or by
    half precision, to which it would round a sum's products."""
    pays = x.size(0) == 1 and x.numel() <= MOST and x.device.type == "cpu"
    exact = x.dtype in (torch.float32, torch.float64) and all(k.dtype == x.dtype for k in kernels)
    return pays and exact and requested(None) is None and not torch.is_autocast_enabled("cpu")


def step(x: Tensor, kernels: Tensor, tail: Tensor, residual: bool = True) -> tuple[Tensor, Tensor]:
    """Continue a causal short convolution by one position.

    Args:
        x: ``[1, batch, channels]``.
        kernels: ``[W, batch or 1, channels]``.
        tail: the inputs before x, ``[n, batch, channels]`` with any n >= 0.
        residual: whether x is added.

    Returns:
        ``[1, batch, channels]`` and the next tail.
    """
    window, tail = continued(tail, x, kernels.size(0))
    y = (window * kernels[kernels.size(0) - window.size(0) :]).sum(0, keepdim=True)
    return (x + y if residual else y), tail
