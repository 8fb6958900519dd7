"""Short convolutions: few taps, static, head-wise or of low rank (Sieberling et al. 2026)."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..convolution import dynamic_conv
from ..convolution.api import check_heads, check_sequence, check_taps
from ..convolution.past import continued
from ..implementation import (
    Implementation,
    check,
    check_floating,
    choose,
    has_triton,
    requested,
    unfit_for_operators,
    without_autocast,
)
from ..native_tensors import unfit
from . import native, reference, tiled

IMPLEMENTATIONS = {
    "reference": Implementation(reference.convolve),
    "tiled": Implementation(tiled.convolve),
    "native": Implementation(native.convolve, unfit),
}


def short_conv(
    x: Tensor,
    taps: Tensor | None = None,
    static: Tensor | None = None,
    *,
    causal: bool,
    residual: bool = True,
    tail: Tensor | None = None,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve with a kernel of each head and position, and one of each channel (Sieberling et
    al. 2026, section 3)::

        y[t, b, c] = x[t, b, c] + sum_k (taps[t, b, head(c), k] + static[c, k]) x[t + k - P, b, c]

    with ``head(c) = c // (channels // heads)``; ``P = W - 1`` of ``W`` taps when ``causal``, else
    ``W // 2``, as in :func:`dynamic_conv`: the paper's tap w is tap ``W - 1 - w`` here. Positions
    outside the sequence count as zeros.

    Args:
        x: ``[time, batch, channels]``, time >= 1.
        taps: ``[time, batch, heads, W]``, or None for none.
        static: ``[channels, W]``, or None for none.
        causal: whether an output sees only its own position and earlier ones.
        residual: whether x is added.
        tail: the inputs that precede ``x``, ``[n, batch, channels]`` with any n >= 0, to continue
            a causal convolution.
        impl: ``reference``, ``tiled`` (in PyTorch; it keeps no kernels for the gradients),
            ``native`` (compiled, for float32 and bfloat16 on the CPU) or ``triton`` (float32 and
            half precision on a GPU). None: what ``CONVATTN_IMPL`` or :func:`use_implementation`
            names, else the fastest that can take the inputs.

    Returns:
        ``[time, batch, channels]``; with a ``tail``, the pair of that and the tail for the next
        call: the last W - 1 inputs, fewer at the beginning.

    Raises:
        ValueError: the shapes disagree, ``impl`` is unknown or cannot take the inputs, or a tail
            is given to a convolution that is not causal.
    """
    check(taps is not None or static is not None, "give taps, static ones, or both")
    check_sequence(x, tail, causal, (Tensor,))
    if static is not None:
        check_floating("static taps", static)
        check(
            static.dim() == 2 and static.size(0) == x.size(2) and static.size(1) >= 1,
            f"static taps must be [channels, W >= 1] = [{x.size(2)}, W], not {list(static.shape)}",
        )
    if taps is not None:
        check_taps(x, taps)
        check_heads(x, taps)
    if static is not None:
        of_heads = x.new_empty(*x.shape[:2], 0, static.size(1)) if taps is None else taps
        check(static.size(1) == of_heads.size(3), "taps and static ones must be equally many")
        kernels = _headwise_kernels(impl, x, of_heads, static)
        if kernels is not None:
            inputs, next_tail, left, own = _continued(x, tail, static.size(1), causal)
            y = kernels(inputs, of_heads, static, left, own if residual else -1)
            return y if tail is None else (y, next_tail)
    if taps is None:
        z, up = x.new_ones(1, 1, 1).expand(*x.shape[:2], 1), static.t().unsqueeze(0)
        return low_rank_short_conv(x, z, up, causal=causal, residual=residual, tail=tail, impl=impl)
    found = dynamic_conv(x, taps, causal=causal, tail=tail, impl=impl)
    y, next_tail = found if tail is not None else (found, None)
    if static is not None:
        rest = short_conv(x, None, static, causal=causal, residual=residual, tail=tail, impl=impl)
        y = y + (rest if tail is None else rest[0])
    elif residual:
        y = y + x
    return y if tail is None else (y, next_tail)


def low_rank_short_conv(
    x: Tensor,
    z: Tensor,
    up: Tensor,
    static: Tensor | None = None,
    *,
    causal: bool,
    residual: bool = True,
    tail: Tensor | None = None,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve with a kernel of each channel and position, which is never stored: as
    :func:`short_conv` with ``taps[t, b, c, k] = sum_r z[t, b, r] up[r, k, c]``.

    Args:
        z: ``[time, batch, ranks]``.
        up: ``[ranks, W, channels]``.

    All else, results and errors are those of :func:`short_conv`.
    """
    check_sequence(x, tail, causal, (Tensor,))
    _check_factors(x, z, up)
    if static is not None:
        check_floating("static taps", static)
        check(
            static.dim() == 2 and static.t().shape == up.shape[1:],
            f"static taps must be [channels, W] = {[*up.shape[:0:-1]]}, not {list(static.shape)}",
        )
        z = torch.cat([z, z.new_ones(*z.shape[:2], 1)], dim=2)
        up = torch.cat([up, static.t().unsqueeze(0)])
    one_rank = up.size(0) == 1  # by PyTorch's convolution, which every transformation takes
    native_pays = not one_rank or up.size(1) <= native.MOST_STATIC_TAPS
    convolve = choose(
        impl,
        IMPLEMENTATIONS,
        _triton,
        (x, z, up),
        otherwise="tiled" if one_rank or not unfit_for_operators() else "reference",
        native_pays=native_pays,
    )
    inputs, next_tail, left, own = _continued(x, tail, up.size(1), causal)
    with without_autocast(x.device.type):
        y = convolve(inputs, z, up, left, own if residual else -1)
    return y if tail is None else (y, next_tail)


def _continued(
    x: Tensor, tail: Tensor | None, taps: int, causal: bool
) -> tuple[Tensor, Tensor | None, int, int]:
    """The inputs that the outputs of x see, the next tail, how many taps of the first output's
    kernel lie before these inputs, and the tap of an output's own position."""
    inputs, next_tail = (x, None) if tail is None else continued(tail, x, taps)
    own = taps - 1 if causal else taps // 2
    return inputs, next_tail, own - (inputs.size(0) - x.size(0)), own


def _headwise_kernels(
    impl: str | None, x: Tensor, taps: Tensor, static: Tensor
) -> Callable[..., Tensor] | None:
    """Kernels for static taps and those of any number of heads at once, where they are asked for
    or are the fastest and can take the inputs."""
    wanted = requested(impl)
    if has_triton() and (wanted == "triton" or wanted is None and x.is_cuda):
        from . import triton_headwise

        fit = not triton_headwise.unfit(x, taps, static)
        return triton_headwise.convolve if fit else None
    pays = wanted == "native" or wanted is None and taps.size(3) <= native.MOST_STATIC_TAPS
    fit = pays and not native.unfit_headwise(x, taps, static)
    return native.convolve_headwise if fit else None


def _check_factors(x: Tensor, z: Tensor, up: Tensor) -> None:
    check(
        z.dim() == 3 and z.shape[:2] == x.shape[:2],
        f"z must be [time, batch, ranks] for x {list(x.shape)}, not {list(z.shape)}",
    )
    check(
        up.dim() == 3 and (up.size(0), up.size(2)) == (z.size(2), x.size(2)) and up.size(1) >= 1,
        f"up must be [ranks, W >= 1, channels] for z {list(z.shape)}, not {list(up.shape)}",
    )
    check_floating("z", z)
    check_floating("up", up)


def _triton() -> Implementation:
    from . import triton_launch

    return Implementation(triton_launch.convolve, triton_launch.unfit)
