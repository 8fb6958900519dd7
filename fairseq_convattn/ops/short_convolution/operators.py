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
) -> Callable[..., Tensor]:
    """Make ``convattn::name`` of two functions, for convolutions of low rank.

    Args:
        forward: has the contract of :func:`reference.convolve`.
        backward: from the gradient, the arguments of ``forward`` and which gradients of x, z and up
            are wanted, returns these, None for others.
        dtypes: supported dtypes of the tensors.
        devices: PyTorch's dispatch keys.

    Returns:
        ``convattn::name``; no second derivatives.
    """

    def fits(x: Tensor, z: Tensor, up: Tensor) -> bool:
        agree = x.dim() == z.dim() == up.dim() == 3 and x.shape[1:] == (z.size(1), up.size(2))
        return agree and z.size(2) == up.size(0)

    names = "x", "z", "up"
    return _register(name, names, forward, backward, fits, dtypes, devices)


def register_headwise(
    name: str,
    forward: Callable,
    backward: Callable,
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[str, ...],
) -> Callable[..., Tensor]:
    """As :func:`register`, for head-wise convolutions: ``forward`` has the contract of
    :func:`reference.convolve_headwise`."""

    def fits(x: Tensor, taps: Tensor, static: Tensor) -> bool:
        agree = (x.dim(), taps.dim(), static.dim()) == (3, 4, 2) and taps.size(2) > 0
        agree = agree and x.shape[1:] == (taps.size(1), static.size(0))
        return agree and static.size(1) == taps.size(3) and x.size(2) % taps.size(2) == 0

    names = "x", "taps", "static"
    return _register(name, names, forward, backward, fits, dtypes, devices)


def _register(
    name: str,
    names: tuple[str, ...],
    forward: Callable,
    backward: Callable,
    fits: Callable[..., bool],
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[str, ...],
) -> Callable[..., Tensor]:
    """``fits``: whether the shapes of three tensors agree, of which the second one has the times
    of the output, and the last one the taps in its second dimension."""

    def check(*inputs) -> None:
        """What the kernels rely on, for direct calls; the functions of ``api`` have better
        messages."""
        *tensors, left, own = inputs
        taps = tensors[2].size(1) if tensors[2].dim() > 1 else 0
        fine = fits(*tensors) and 0 <= left < taps and -1 <= own < taps
        if not fine or not {t.dtype for t in tensors} <= set(dtypes):
            given = dict(zip(names, tensors, strict=True))
            raise ValueError(", ".join(f"{n} {list(t.shape)} {t.dtype}" for n, t in given.items()))

    def compute(*inputs) -> Tensor:
        check(*inputs)
        return forward(*inputs)

    def compute_backward(grad: Tensor, *inputs) -> tuple[Tensor | None, ...]:
        *inputs, wanted = inputs
        check(*inputs)
        x, factor, *_ = inputs
        if grad.shape != (factor.size(0), *x.shape[1:]):
            raise ValueError(f"grad {list(grad.shape)}, x {list(x.shape)}, {list(factor.shape)}")
        return backward(grad.to(x.dtype), *inputs, wanted)

    def fake(x: Tensor, factor: Tensor, *others) -> Tensor:
        return x.new_empty(factor.size(0), *x.shape[1:])

    schema = ", ".join(f"Tensor {each}" for each in names) + ", SymInt left, SymInt own"
    return operators.register(
        name, schema, "Tensor", compute, compute_backward, fake, devices, differentiable=3
    )
