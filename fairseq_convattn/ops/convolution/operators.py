"""Both convolutions as PyTorch operators, with one schema for all kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import operators

_INPUTS = "Tensor x, Tensor taps, Tensor? kept, SymInt time, SymInt left, bool softmax, float keep"


def register(
    name: str,
    forward: Callable,
    backward: Callable,
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[str, ...],
    keeps_sums: Callable[[Tensor, Tensor], bool],
) -> Callable[..., Tensor]:
    """Make ``convattn::name`` of two functions.

    Args:
        forward: from x, taps, kept, time, left, softmax, keep as :func:`reference.convolve` returns
            the outputs and ``lse``, the binary logarithms of sums of exponentials; see
            :func:`outputs`.
        backward: from the gradient, ``lse``, the arguments of ``forward`` and whether gradients of
            x and taps are wanted, returns these, None where not wanted.
        dtypes: supported dtypes of x and taps.
        devices: PyTorch's dispatch keys.
        keeps_sums: whether ``forward`` gives the logarithms of a softmax of such x and taps.

    Returns:
        A function with the contract of :func:`reference.convolve`; no second derivatives.
    """

    def compute(x, taps, kept, time, *options) -> tuple[Tensor, Tensor]:
        check(x, taps, kept, time, dtypes)
        return forward(x, taps, kept, time, *options)

    def compute_backward(grad, lse, x, taps, kept, time, *options) -> tuple[Tensor | None, ...]:
        check(x, taps, kept, time, dtypes)
        if grad.shape != (time, *x.shape[1:]):
            raise ValueError(f"grad {list(grad.shape)}, x {list(x.shape)}, time {time}")
        return backward(grad.to(x.dtype), lse, x, taps, kept, time, *options)

    def fake(x, taps, kept, time, left, softmax, keep) -> tuple[Tensor, Tensor]:
        return outputs(x, taps, time, softmax and keeps_sums(x, taps))

    operator = operators.register(
        name,
        _INPUTS,
        "(Tensor, Tensor)",
        compute,
        compute_backward,
        fake,
        devices,
        differentiable=2,
        kept=(1,),
    )

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
        """Same contract as :func:`reference.convolve`; no second derivatives."""
        return operator(x, taps, kept, time, left, softmax, keep)[0]

    return convolve


def check(
    x: Tensor, taps: Tensor, kept: Tensor | None, time: int, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Check what the kernels rely on, for direct calls; :func:`dynamic_conv` has better
    messages."""
    heads = taps.size(-2)
    fits = x.dim() == 3 and heads > 0 and x.size(2) % heads == 0 and taps.size(-1) > 0
    if taps.dim() != 2:
        fits = fits and taps.dim() == 4 and taps.shape[:2] == (time, x.size(1))
    if kept is not None:
        fits = fits and (kept.shape, kept.dtype) == (taps.shape, torch.bool)
    if not fits or x.dtype not in dtypes or taps.dtype not in dtypes:
        given = {"x": x, "taps": taps, "kept": kept}
        given = [f"{n} {list(t.shape)} {t.dtype}" for n, t in given.items() if t is not None]
        raise ValueError(", ".join(given))


def outputs(x: Tensor, taps: Tensor, time: int, keeps_sums: bool) -> tuple[Tensor, Tensor]:
    """Uninitialised outputs and ``lse``, ``[heads]`` or ``[time, batch, heads]``, or empty."""
    lse = taps.new_empty(taps.shape[:-1] if keeps_sums else 0, dtype=torch.float32)
    return x.new_empty(time, *x.shape[1:]), lse
