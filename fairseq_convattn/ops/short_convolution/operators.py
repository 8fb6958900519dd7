"""Short convolutions as PyTorch operators, with one schema for all kernels of a kind."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import operators


def register(
    name: str,
    forward: Callable,
    backward: Callable,
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[str, ...],
    *,
    headwise: bool = False,
) -> Callable[..., Tensor]:
    """Make ``convattn::name`` of two functions.

    Args:
        forward: has the contract of :func:`reference.convolve`; if ``headwise``, with taps ``[time,
            batch, heads >= 0, taps]`` and static ones ``[channels, taps]`` instead of z and up.
        backward: from the gradient, the arguments of ``forward`` and which gradients of its three
            tensors are wanted, returns these, None for others.
        dtypes: supported dtypes of the tensors.
        devices: PyTorch's dispatch keys.

    Returns:
        ``convattn::name``; no second derivatives.
    """
    names = ("x", "taps", "static") if headwise else ("x", "z", "up")
    agree = _headwise_agree if headwise else _low_rank_agree

    def check(*inputs) -> None:
        """What the kernels rely on, for direct calls; the functions of ``api`` have better
        messages."""
        *tensors, left, own = inputs
        fits = agree(*tensors) and tensors[1].size(0) >= 1 and 0 <= left < tensors[2].size(1)
        fits = fits and -1 <= own < tensors[2].size(1)
        if not fits or not {t.dtype for t in tensors} <= set(dtypes):
            given = dict(zip(names, tensors, strict=True))
            raise ValueError(", ".join(f"{n} {list(t.shape)} {t.dtype}" for n, t in given.items()))

    def compute(*inputs) -> Tensor:
        check(*inputs)
        return forward(*inputs)

    def compute_backward(grad: Tensor, *inputs) -> tuple[Tensor | None, ...]:
        *inputs, wanted = inputs
        check(*inputs)
        x, by_position, *_ = inputs
        if grad.shape != (by_position.size(0), *x.shape[1:]):
            shapes = f"x {list(x.shape)}, {names[1]} {list(by_position.shape)}"
            raise ValueError(f"grad {list(grad.shape)}, {shapes}")
        return backward(grad.to(x.dtype), *inputs, wanted)

    def fake(x: Tensor, by_position: Tensor, *others) -> Tensor:
        return x.new_empty(by_position.size(0), *x.shape[1:])

    schema = ", ".join(f"Tensor {each}" for each in names) + ", SymInt left, SymInt own"
    return operators.register(
        name, schema, "Tensor", compute, compute_backward, fake, devices, differentiable=3
    )


def _low_rank_agree(x: Tensor, z: Tensor, up: Tensor) -> bool:
    agree = x.dim() == z.dim() == up.dim() == 3 and x.shape[1:] == (z.size(1), up.size(2))
    return agree and z.size(2) == up.size(0)


def _headwise_agree(x: Tensor, taps: Tensor, static: Tensor) -> bool:
    agree = (x.dim(), taps.dim(), static.dim()) == (3, 4, 2)
    agree = agree and x.shape[1:] == (taps.size(1), static.size(0))
    return agree and static.size(1) == taps.size(3) and x.size(2) % (taps.size(2) or 1) == 0
