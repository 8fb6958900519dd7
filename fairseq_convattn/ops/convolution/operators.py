"""Both convolutions as PyTorch operators, with one schema for all kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..operators import define, differentiate

_OPTIONS = "SymInt left, bool softmax, float keep"


def register(
    name: str,
    forward: Callable,
    backward: Callable,
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[str, ...],
    keeps_sums: bool,
) -> Callable[..., Tensor]:
    """Make ``convattn::name`` of two functions.

    Args:
        forward: from x, taps, kept, time, left, softmax, keep as :func:`reference.convolve` returns
            the outputs and ``lse``, the binary logarithms of sums of exponentials; see
            :func:`outputs`.
        backward: from the gradient, ``lse``, the arguments of ``forward`` but the time, and whether
            gradients of x and taps are wanted, returns these, empty where not wanted.
        dtypes: supported dtypes of x and taps.
        devices: PyTorch's dispatch keys.
        keeps_sums: whether ``forward`` gives the logarithms of a softmax.

    Returns:
        A function with the contract of :func:`reference.convolve`; no second derivatives.
    """

    def compute(x, taps, kept, time, *options) -> tuple[Tensor, Tensor]:
        check(x, taps, kept, time, dtypes)
        return forward(x, taps, kept, time, *options)

    def fake(x, taps, kept, time, left, softmax, keep) -> tuple[Tensor, Tensor]:
        return outputs(x, taps, time, softmax and keeps_sums)

    def compute_backward(grad, lse, x, taps, kept, *options) -> tuple[Tensor, Tensor]:
        check(x, taps, kept, grad.size(0), dtypes)
        return backward(grad, lse, x, taps, kept, *options)

    define(
        name,
        f"(Tensor x, Tensor taps, Tensor? kept, SymInt time, {_OPTIONS}) -> (Tensor, Tensor)",
        compute,
        fake,
        devices,
    )
    define(
        f"{name}_backward",
        f"(Tensor grad, Tensor lse, Tensor x, Tensor taps, Tensor? kept, {_OPTIONS}, "
        "bool needs_x, bool needs_taps) -> (Tensor, Tensor)",
        compute_backward,
        _fake_backward,
        devices,
    )
    operator = differentiate(name, _save, _differentiate)

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


def _fake_backward(grad, lse, x, taps, kept, left, softmax, keep, needs_x, needs_taps):
    return x.new_empty(x.shape if needs_x else 0), taps.new_empty(taps.shape if needs_taps else 0)


def _save(ctx, inputs, output) -> None:
    x, taps, kept, _, *ctx.options = inputs
    ctx.save_for_backward(output[1], x, taps, kept)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(of_backward: Callable, ctx, grad: Tensor | None, _):
    if grad is None:
        return (None,) * 7
    needed = ctx.needs_input_grad[:2]
    grads = of_backward(grad, *ctx.saved_tensors, *ctx.options, *needed)
    x, taps = (g if need else None for g, need in zip(grads, needed, strict=True))
    return x, taps, None, None, None, None, None
