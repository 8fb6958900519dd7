"""The relative terms of composite attention, as functions of the distance r = j - i.

i is the query's position, j the key's. Those that do not depend on content are curves
f(r), a Toeplitz matrix of scores per head.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

TERMS = {
    "content": "q_i . k_j",
    "fixed": "beta[j - i], a lightweight convolution",
    "query": "q_i . wQ[j - i], a dynamic convolution predicted from the query",
    "key": "k_j . wK[i - j], a dynamic convolution predicted from the key",
    "key_only": "u . k_j, Transformer-XL's",
    "tisa": "sum_s a_s exp(-|b_s| (j - i - c_s)^2)",
    "alibi": "-m |j - i|, m = 2^(-8 h / H) for head h = 1..H, not learned",
    "t5": "a table over buckets of j - i: small distances one each, larger ones logarithmic",
    "kerple": "-|a| log(1 + |b| |j - i|)",
}
# Those of each term's tensors. One head serves all heads.
SHAPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "content": (),
    "fixed": (("heads", "taps"),),
    "query": (("heads", "taps", "head_dim"),),
    "key": (("heads", "taps", "head_dim"),),
    "key_only": (("heads", "head_dim"),),
    "tisa": 3 * (("heads", "kernels"),),
    "alibi": (("heads",),),
    "t5": (("heads", "buckets"),),
    "kerple": 2 * (("heads",),),
}
TABLE_TERMS = ("fixed", "query", "key")
POSITION_TERMS = (*TABLE_TERMS, "tisa", "alibi", "t5", "kerple")
BEYOND = ("clip", "zero", "mask")

T5_MAX_DISTANCE = 128

Terms = Mapping[str, Tensor | tuple[Tensor, ...] | None]


class Options(NamedTuple):
    """The options of :func:`composite_attention`, checked and completed."""

    causal: bool
    beyond: str
    span: int | None
    padding_mask: Tensor | None
    dropout_p: float
    scale: float


def near(terms: Terms, options: "Options", keys: int) -> int | None:
    """The distance from which on position alone makes no difference to a score, on either side
    alike; None where it makes one at every distance. A window ends with the keys."""
    if any(name in terms for name in CURVES):
        return None
    tables = any(name in terms for name in TABLE_TERMS)
    close = options.span + 1 if tables else 0
    if options.beyond == "mask":
        close = min(options.span + 1, keys)
    return max(close, T5_MAX_DISTANCE if "t5" in terms else 0)


def relative_bias(terms: Terms, distances: Tensor, *, causal: bool, beyond: str = "clip") -> Tensor:
    """The sum of the terms that do not depend on content, at given distances.

    Args:
        terms: as :func:`composite_attention` takes them; others are left out.
        distances: whole numbers r = j - i, ``[n]``.
        causal, beyond: as :func:`composite_attention` takes them; ``mask`` is not applied.

    Returns:
        ``[heads, n]``, or ``[1, n]`` when all heads agree.
    """
    curves = [CURVES[name](distances, *_tensors(terms[name])) for name in CURVES if name in terms]
    if "t5" in terms:
        buckets = t5_buckets(distances, terms["t5"].size(-1), bidirectional=not causal)
        curves.append(terms["t5"][:, buckets])
    if "fixed" in terms:
        curves.append(at_distances(terms["fixed"], distances, causal=causal, beyond=beyond))
    if not curves:
        return torch.zeros(1, distances.size(0), device=distances.device)
    return sum(curves[1:], start=curves[0])


def at_distances(table: Tensor, distances: Tensor, *, causal: bool, beyond: str) -> Tensor:
    """Entries of a table over the distances -n..n (``causal``: -n..0).

    Args:
        table: ``[heads, taps, ...]``.
        distances: whole numbers of any shape.
        beyond: ``zero`` gives zero beyond the span, all else the edge tap.

    Returns:
        ``[heads, *distances.shape, ...]``.
    """
    taps = table.size(1)
    index = distances + (taps - 1 if causal else taps // 2)
    entries = table[:, index.clamp(0, taps - 1)]
    if beyond != "zero":
        return entries
    inside = (index >= 0) & (index < taps)
    return entries * inside.view(inside.shape + (1,) * (table.dim() - 2))


def tisa(distances: Tensor, amplitude: Tensor, sharpness: Tensor, center: Tensor) -> Tensor:
    """f(r) = sum_s a_s exp(-|b_s| (r - c_s)^2) (Wennberg and Henter 2021, eq. 7).

    Computed in float32 at least: squared distances overflow half precision.

    Args:
        distances: ``[n]``.
        amplitude, sharpness, center: a, b and c, ``[heads, kernels]``.

    Returns:
        ``[heads, n]``.
    """
    a, b, c = (wide(x).unsqueeze(-1) for x in (amplitude, sharpness, center))
    return (a * torch.exp(-b.abs() * (distances - c) ** 2)).sum(-2)


def alibi(distances: Tensor, slopes: Tensor) -> Tensor:
    """f(r) = -m |r| (Press et al. 2022); slopes m: ``[heads]``."""
    return -wide(slopes).unsqueeze(-1) * distances.abs()


def kerple(distances: Tensor, scale: Tensor, rate: Tensor) -> Tensor:
    """f(r) = -|a| log(1 + |b| |r|), the logarithmic kernel of KERPLE (Chi et al. 2022).

    Args:
        distances: ``[n]``.
        scale, rate: a and b, ``[heads]``.
    """
    a, b = (wide(x).abs().unsqueeze(-1) for x in (scale, rate))
    return -a * torch.log1p(b * distances.abs())


CURVES = {"tisa": tisa, "alibi": alibi, "kerple": kerple}


def alibi_slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """m_h = 2^(-8 h / H) for h = 1..H (Press et al. 2022, section 3)."""
    return 2.0 ** (-8.0 * torch.arange(1.0, heads + 1, dtype=torch.float32, device=device) / heads)


def t5_buckets(distances: Tensor, buckets: int, *, bidirectional: bool) -> Tensor:
    """T5's bucket of every distance (Raffel et al. 2020, section 2.1).

    Half of the buckets (of those of one direction, when ``bidirectional``) hold one
    distance each, the others grow logarithmically up to ``T5_MAX_DISTANCE``.

    Raises:
        ValueError: one distance each would already reach ``T5_MAX_DISTANCE``.
    """
    directions = 2 if bidirectional else 1
    exact = buckets // directions // 2
    if exact >= T5_MAX_DISTANCE:
        most = 2 * directions * T5_MAX_DISTANCE
        raise ValueError(f"t5 takes fewer than {most} buckets, not {buckets}")
    if bidirectional:
        buckets //= 2
        first, size = buckets * (distances > 0), distances.abs()
    else:
        first, size = 0, (-distances).clamp(min=0)
    growth = torch.log(size.clamp(min=1).float() / exact) / math.log(T5_MAX_DISTANCE / exact)
    far = exact + (growth * (buckets - exact)).long().clamp(max=buckets - exact - 1)
    return first + torch.where(size < exact, size, far)


def wide(x: Tensor) -> Tensor:
    """``x`` in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _tensors(parameters: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return parameters if isinstance(parameters, tuple) else (parameters,)
