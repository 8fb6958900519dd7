"""Low-rank short convolutions as PyTorch operators, with one schema for all kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..operators import define, differentiate

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

    def compute(x, z, up, left, own) -> Tensor:
        _check(x, z, up, left, own, dtypes)
        return forward(x, z, up, left, own)

    def compute_backward(grad, x, z, up, left, own, wanted) -> list[Tensor]:
        _check(x, z, up, left, own, dtypes)
        if grad.shape != (z.size(0), *x.shape[1:]):
            raise ValueError(f"grad {list(grad.shape)}, x {list(x.shape)}, z {list(z.shape)}")
        found = backward(grad.to(x.dtype), x, z, up, left, own, wanted)
        return [grad.new_empty(0) if g is None else g for g in found]

    define(name, f"({_INPUTS}) -> Tensor", compute, _fake, devices)
    define(
        f"{name}_backward",
        f"(Tensor grad, {_INPUTS}, bool[] wanted) -> Tensor[]",
        compute_backward,
        _fake_backward,
        devices,
    )
    return differentiate(name, _save, _differentiate)


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


def _fake_backward(grad, x, z, up, left, own, wanted) -> list[Tensor]:
    return [
        t.new_empty(t.shape) if need else grad.new_empty(0)
        for t, need in zip((x, z, up), wanted, strict=True)
    ]


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.left, ctx.own = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(of_backward: Callable, ctx, grad: Tensor):
    wanted = list(ctx.needs_input_grad[:3])
    found = of_backward(grad, *ctx.saved_tensors, ctx.left, ctx.own, wanted)
    return *(g if need else None for g, need in zip(found, wanted, strict=True)), None, None
