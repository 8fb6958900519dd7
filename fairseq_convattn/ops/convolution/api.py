"""Lightweight and dynamic convolution (Wu et al. 2019, sections 3 and 4)."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..implementation import (
    Implementation,
    check,
    check_floating,
    choose,
    requested,
    without_autocast,
)
from ..masks import kept
from ..native_tensors import unfit
from . import native, reference, tiled
from .past import Past, continued, step

IMPLEMENTATIONS = {
    "reference": Implementation(reference.convolve),
    "tiled": Implementation(tiled.convolve),
    "native": Implementation(native.convolve, unfit),
}

# Below this many taps, summing them one by one is faster than building band matrices.
TILED_KERNEL_SIZE = 8

# Above this many, matrix products are the faster way.
NATIVE_KERNEL_SIZE = 255


def lightweight_conv(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool,
    tail: Tensor | Past | None = None,
    softmax: bool = False,
    dropout_p: float = 0.0,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor | Past]:
    """Convolve every channel with the one kernel of its head (Wu et al. 2019, eq. 4).

    ``y[i, b, c] = bias[c] + sum_k taps[head(c), k] x[i + k - P, b, c]`` with
    ``head(c) = c // (channels // heads)``; ``P = kernel_size - 1`` when ``causal``, else
    ``kernel_size // 2``. Positions outside the sequence count as zeros.

    Args:
        x: ``[time, batch, channels]``, time >= 1.
        taps: ``[heads, kernel_size]``; any kernel_size >= 1.
        bias: ``[channels]`` or None.
        causal: whether an output sees only its own position and earlier ones.
        tail: the inputs that precede ``x``, ``[n, batch, channels]`` with any n >= 0,
            to continue a causal convolution. Start with ``x.new_zeros(0, batch, channels)``;
            or, where that is to be fast, with ``Past.none(batch, x)``.
        softmax: whether to convolve with the softmax of the taps, computed in float32 at least.
        dropout_p: probability of dropping a tap, after the softmax (DropConnect), here for all
            positions alike; the others are divided by ``1 - dropout_p``. On a CPU it is rounded
            to a multiple of 2^-16, but not under torch.compile or torch.func.
        impl: ``reference`` or ``tiled`` (both in PyTorch), ``native`` (compiled, for
            float32 and bfloat16 on the CPU) or ``triton`` (up to 64 taps in float32 and
            half precision on a GPU). None: what ``CONVATTN_IMPL`` or
            :func:`use_implementation` names, else the fastest that can take the inputs.

    Returns:
        ``[time, batch, channels]`` in the dtype of ``x``; with a ``tail``, the pair of that and the
        tail for the next call: the last ``kernel_size - 1`` inputs (fewer at the beginning), or a
        :class:`Past` if it was one.

    Raises:
        ValueError: the shapes disagree, ``impl`` is unknown or cannot take the inputs, or a
            tail is given to a convolution that is not causal, or dropout_p is not in [0, 1).
    """
    check(taps.dim() == 2, f"taps must be [heads, kernel_size], not {list(taps.shape)}")
    with without_autocast(x.device.type):
        return _convolve(x, taps, bias, causal, tail, softmax, dropout_p, impl)


def dynamic_conv(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool,
    tail: Tensor | Past | None = None,
    softmax: bool = False,
    dropout_p: float = 0.0,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor | Past]:
    """Convolve with a kernel of its own at every position (Wu et al. 2019, eq. 5).

    ``y[i, b, c] = bias[c] + sum_k taps[i, b, head(c), k] x[i + k - P, b, c]``.

    Args:
        taps: ``[time, batch, heads, kernel_size]``.
        dropout_p: probability of dropping a weight; every position drops its own.

    All else, results and errors are those of :func:`lightweight_conv`.
    """
    check_taps(x, taps)
    with without_autocast(x.device.type):
        return _convolve(x, taps, bias, causal, tail, softmax, dropout_p, impl)


def check_taps(x: Tensor, taps: Tensor) -> None:
    """Raise ValueError where dynamic taps do not belong to ``x``, ``[time, batch, channels]``."""
    check(
        taps.dim() == 4 and taps.shape[:2] == x.shape[:2],
        f"taps must be [time, batch, heads, kernel_size] for x {list(x.shape)}, "
        f"not {list(taps.shape)}",
    )


def check_heads(x: Tensor, taps: Tensor) -> None:
    """Raise ValueError where the channels of ``x`` cannot be divided among the heads of taps."""
    heads, kernel_size = taps.shape[-2:]
    check(
        heads >= 1 and x.size(2) % heads == 0, f"{heads} heads do not divide {x.size(2)} channels"
    )
    check(kernel_size >= 1, "the kernel needs at least one tap")
    check_floating("taps", taps)


def _convolve(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    causal: bool,
    tail: Tensor | Past | None,
    softmax: bool,
    dropout_p: float,
    impl: str | None,
) -> Tensor | tuple[Tensor, Tensor | Past]:
    _check_inputs(x, taps, bias, causal, tail, dropout_p)
    implementation = _implementation(impl, x, taps)
    time, kernel_size = x.size(0), taps.size(-1)
    mask, keep = kept(taps, dropout_p) if dropout_p > 0 else (None, 1.0)
    options = {"softmax": softmax, "kept": mask, "keep": keep}
    if tail is None:
        left = kernel_size - 1 if causal else kernel_size // 2
        return _with_bias(implementation(x, taps, time, left, **options), bias)
    if isinstance(tail, Past):
        past = tail.append(x, kernel_size - 1)
        left = kernel_size - 1 - (len(past.index) - time)
        if implementation is native.convolve and mask is None and not torch.is_grad_enabled():
            given = past.rows, past.index, taps, time, left, softmax
            y = torch.ops.convattn.convolve_past(*given)
        elif x.is_cuda and time == 1 and mask is None and requested(impl) is None:
            y = step(past.inputs(), taps, softmax)
        else:
            y = implementation(past.inputs(), taps, time, left, **options)
        return _with_bias(y, bias), past
    inputs, next_tail = continued(tail, x, kernel_size)
    left = kernel_size - 1 - (inputs.size(0) - time)
    return _with_bias(implementation(inputs, taps, time, left, **options), bias), next_tail


def _with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.to(y.dtype)


def _check_inputs(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    causal: bool,
    tail: Tensor | Past | None,
    dropout_p: float,
) -> None:
    check_sequence(x, tail, causal, (Tensor, Past))
    check_heads(x, taps)
    check(
        bias is None or bias.shape == x.shape[2:],
        f"bias must be [channels] = [{x.size(2)}], not {[] if bias is None else list(bias.shape)}",
    )
    if bias is not None:
        check_floating("bias", bias)
    if not 0 <= dropout_p < 1:  # torch.compile formats no number that it does not know
        raise ValueError(f"dropout_p must be in [0, 1), not {dropout_p}")


def check_sequence(
    x: Tensor, tail: Tensor | Past | None, causal: bool, tails: tuple[type, ...]
) -> None:
    """Raise ValueError unless ``x`` is ``[time, batch, channels]`` and ``tail``, one of ``tails``,
    can precede it."""
    check(
        x.dim() == 3 and x.size(0) >= 1,
        f"x must be [time >= 1, batch, channels], not {list(x.shape)}",
    )
    check_floating("x", x)
    check(tail is None or causal, "only a causal convolution continues from a tail")
    if tail is None:
        return
    allowed = "a tensor or a Past" if Past in tails else "a tensor"
    check(isinstance(tail, tails), f"tail must be {allowed}, not {type(tail).__name__}")
    like = (tail.index.size(1), tail.rows.size(2)) if isinstance(tail, Past) else tail.shape[1:]
    check_floating("tail", tail.rows if isinstance(tail, Past) else tail)
    check(
        tuple(like) == x.shape[1:],
        f"tail must have the batch and channels of x, {list(x.shape[1:])}, not {list(like)}",
    )


def _triton() -> Implementation:
    from . import triton_launch

    return Implementation(triton_launch.convolve, triton_launch.unfit)


def _implementation(name: str | None, x: Tensor, taps: Tensor) -> Callable[..., Tensor]:
    # tiles depend on the length, which torch.export leaves open
    tiles = taps.size(-1) >= TILED_KERNEL_SIZE and not torch.compiler.is_exporting()
    return choose(
        name,
        IMPLEMENTATIONS,
        _triton,
        (x, taps),
        otherwise="tiled" if tiles else "reference",
        native_pays=taps.size(-1) <= NATIVE_KERNEL_SIZE,
    )
