"""Low-rank short convolutions as PyTorch operators, with one schema for all kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import operators

_INPUTS = "Tensor x, Tensor z, Tensor up, SymInt left, SymInt own"


def register(
    name: str,
    forward: Callable,
    backward: Callable,
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[str, ...],
) -> Callable[..., Tensor]:
    """Make ``convattn::name`` of two functions.

    Args:
        forward: has the contract of :func:`reference.convolve`.
        backward: from the gradient, the arguments of ``forward`` and which gradients of x, z and up
            are wanted, returns these, None for others.
        dtypes: supported dtypes of the tensors.
        devices: PyTorch's dispatch keys.

    Returns:
        ``convattn::name``; no second derivatives.
    """

    def compute(*inputs) -> Tensor:
        _check(*inputs, dtypes)
        return forward(*inputs)

    def compute_backward(grad: Tensor, *inputs) -> tuple[Tensor | None, ...]:
        *inputs, wanted = inputs
        _check(*inputs, dtypes)
        x, z, *_ = inputs
        if grad.shape != (z.size(0), *x.shape[1:]):
            raise ValueError(f"grad {list(grad.shape)}, x {list(x.shape)}, z {list(z.shape)}")
        return backward(grad.to(x.dtype), *inputs, wanted)

    return operators.register(
        name, _INPUTS, "Tensor", compute, compute_backward, _fake, devices, differentiable=3
    )


def _check(
    x: Tensor, z: Tensor, up: Tensor, left: int, own: int, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Check what the kernels rely on, for direct calls; the functions of ``api`` have better
    messages."""
    fits = x.dim() == z.dim() == up.dim() == 3 and x.shape[1:] == (z.size(1), up.size(2))
    fits = fits and z.size(2) == up.size(0) and 0 <= left < up.size(1)
    fits = fits and -1 <= own < up.size(1)
    if not fits or not {x.dtype, z.dtype, up.dtype} <= set(dtypes):
        given = {"x": x, "z": z, "up": up}
        raise ValueError(", ".join(f"{n} {list(t.shape)} {t.dtype}" for n, t in given.items()))


def _fake(x: Tensor, z: Tensor, up: Tensor, left: int, own: int) -> Tensor:
    return x.new_empty(z.size(0), *x.shape[1:])
