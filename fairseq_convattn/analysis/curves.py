"""Relative terms and kernels of a layer as curves over the distance."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..ops import normalize_taps, relative_bias

FARTHEST = 128  # of the curves that have no last distance
# These depend on content, so the length of their vectors is shown.
VECTOR_TERMS = ("query", "key")


def term_curves(term: str, parameters: tuple[Tensor, ...], causal: bool) -> tuple[Tensor, Tensor]:
    """f(j - i) of a relative term; for ``query`` and ``key``, the Euclidean length of the vectors.

    Args:
        term: one of ``POSITION_TERMS``.
        parameters: the term's, as ``TERM_PARAMETERS`` orders them; of ``alibi`` its slopes.
        causal: whether there are only distances up to 0.

    Returns:
        distances, ``[points]``, and values, ``[heads or 1, points]``. A table's curve ends at its
        span.
    """
    first = parameters[0]
    if term in VECTOR_TERMS:
        lengths = torch.linalg.vector_norm(first, dim=-1)
        # the key's table is over i - j
        return _taps(lengths.size(1), causal), lengths.flip(1) if term == "key" else lengths
    if term == "fixed":
        distances = _taps(first.size(1), causal)
    else:
        distances = torch.arange(-FARTHEST, (0 if causal else FARTHEST) + 1)
    value = parameters if len(parameters) > 1 else first
    return distances, relative_bias({term: value}, distances, causal=causal)


def kernel_curves(logits: Tensor, norm: str, causal: bool) -> tuple[Tensor, Tensor]:
    """The taps of a lightweight convolution over the distances ``j - i``.

    Args:
        logits: ``[heads, kernel_size]``, or ``[heads, 1, kernel_size]`` as in 2019.
        norm: how they are normalised, as :func:`ops.normalize_taps` names it.
        causal: True if the last tap falls on the position itself, False if the middle one does.

    Returns:
        distances, ``[kernel_size]``, and taps, ``[heads, kernel_size]``.
    """
    taps = normalize_taps(logits.flatten(1), norm)
    return _taps(taps.size(1), causal), taps


def shared_by_layers(
    found: Mapping[int, tuple[Tensor, ...]],
) -> list[tuple[list[int], tuple[Tensor, ...]]]:
    """Group layers whose tensors are equal, such as shared parameters."""
    groups: list[tuple[list[int], tuple[Tensor, ...]]] = []
    for layer, tensors in found.items():
        for layers, others in groups:
            if all(map(torch.equal, tensors, others)):
                layers.append(layer)
                break
        else:
            groups.append(([layer], tensors))
    return groups


def curves_by_layers(found: Mapping[int, tuple[Tensor, Tensor]]) -> list[dict[str, Any]]:
    """A value per head and distance, as data: ``layers`` in which it is the same, ``distances``
    ``j - i`` of key j and query i, rising, and ``heads``, the values at these of each head, or of
    one where all share it."""
    return [
        {"layers": layers, "distances": distances.tolist(), "heads": values.tolist()}
        for layers, (distances, values) in shared_by_layers(found)
    ]


def _taps(count: int, causal: bool) -> Tensor:
    return torch.arange(count) - (count - 1 if causal else count // 2)
