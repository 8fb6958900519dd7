"""Normalisation of kernels over their taps (Wu et al. 2019, section 3 and table 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .implementation import check

EPSILON = 1e-6

TAP_NORMALIZATIONS = {
    "softmax": "exp(W) / sum exp(W), the paper's choice",
    "l2": "W / (|W|_2 + 1e-6)",
    "abs_l2": "|W| / (|W|_2 + 1e-6)",
    "sigmoid": "sigmoid(W)",
    "tanh": "tanh(W)",
    "none": "W as it is (diverges in the paper)",
}

RENORMALIZABLE = ("softmax", "l2", "abs_l2")


def normalize_taps(logits: Tensor, norm: str, inside: Tensor | None = None) -> Tensor:
    """Normalise kernels over their last dimension.

    Args:
        logits: ``[..., kernel_size]``.
        norm: a key of ``TAP_NORMALIZATIONS``.
        inside: boolean, broadcast against ``logits``; taps where it is False get weight
            zero and the rest are normalised among themselves (where none is True the
            weights are finite but meaningless). Only for the norms in ``RENORMALIZABLE``.

    Returns:
        The taps, in the dtype of ``logits``; sums are computed in float32 at least.

    Raises:
        ValueError: ``norm`` is unknown or does not go with ``inside``.
    """
    if norm not in TAP_NORMALIZATIONS:
        raise ValueError(f"unknown norm {norm!r}: choose from {', '.join(TAP_NORMALIZATIONS)}")
    if inside is not None:
        if norm not in RENORMALIZABLE:
            raise ValueError(f"norm {norm!r} has no sum over the taps to renormalise")
        outside = torch.finfo(logits.dtype).min if norm == "softmax" else 0.0
        logits = torch.where(inside, logits, outside)
    wide = torch.promote_types(logits.dtype, torch.float32)
    if norm == "softmax":
        return F.softmax(logits, dim=-1, dtype=wide).to(logits.dtype)
    if norm in ("l2", "abs_l2"):
        length = torch.linalg.vector_norm(logits, dim=-1, keepdim=True, dtype=wide)
        signed = logits.abs() if norm == "abs_l2" else logits
        return (signed / (length + EPSILON)).to(logits.dtype)
    if norm == "sigmoid":
        return logits.sigmoid()
    if norm == "tanh":
        return logits.tanh()
    return logits


def tap_weights(taps: Tensor, softmax: bool, kept: Tensor | None, keep: float) -> Tensor:
    """The weights of a convolution: the taps, or their softmax in float32 at least.

    Args:
        taps: ``[..., kernel_size]``.
        kept: boolean of the same shape; weights that are not kept become zero and the others are
            divided by ``keep``, the probability (DropConnect, Wan et al. 2013).
    """
    if softmax:
        taps = taps.softmax(-1, dtype=torch.promote_types(taps.dtype, torch.float32))
    return taps if kept is None else torch.where(kept, taps / keep, 0)


def taps_inside(real: Tensor, time: int, kernel_size: int, *, causal: bool) -> Tensor:
    """Which taps of the last ``time`` positions fall on a real token.

    Args:
        real: boolean ``[n + time, batch]``: the n >= 0 positions before (a causal
            convolution's tail), then the positions themselves; False at padding.

    Returns:
        Boolean ``[time, batch, 1, kernel_size]``, for logits
        ``[time, batch, heads, kernel_size]``.
    """
    check(time >= 1, "a convolution needs time >= 1")
    left = kernel_size - 1 if causal else kernel_size // 2
    padded = F.pad(real, (0, 0, left, kernel_size - 1 - left))
    # contiguous: by its strides torch.export would limit time
    return padded.unfold(0, kernel_size, 1)[-time:].unsqueeze(2).contiguous()
