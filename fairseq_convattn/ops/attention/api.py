"""Composite attention: self-attention united with relative-position convolutions."""

from collections.abc import Mapping
from numbers import Integral

import torch
from torch import Tensor

from ..implementation import (
    Implementation,
    check,
    check_floating,
    choose,
    unfit_for_operators,
    without_autocast,
)
from . import native, reference, tiled
from .terms import BEYOND, SHAPES, TABLE_TERMS, TERMS, Options, Terms

_MULTIPLIED = {"query", "key", "key_only"}  # by queries or keys

IMPLEMENTATIONS = {
    "reference": Implementation(reference.attend),
    "tiled": Implementation(tiled.attend, lambda *inputs: unfit_for_operators()),
    "native": Implementation(native.attend, native.unfit),
}


def composite_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    *,
    causal: bool,
    beyond: str = "clip",
    span: int | None = None,
    padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    impl: str | None = None,
) -> Tensor:
    """Attention whose scores are a sum of any of these terms (Chang et al. 2021, section 3;
    Wennberg and Henter 2021, eq. 6 and 7), with one softmax over each row::

        content   q_i . k_j scale
        fixed     beta_h[clip(j - i)]
        query     q_i . wQ_h[clip(j - i)] scale
        key       k_j . wK_h[clip(i - j)] scale
        key_only  u_h . k_j scale
        tisa      sum_s a_hs exp(-|b_hs| (j - i - c_hs)^2)
        alibi     -m_h |j - i|
        t5        table_h[bucket(j - i)]
        kerple    -|a_h| log(1 + |b_h| |j - i|)

    Args:
        q: ``[batch, heads, queries, head_dim]``, at the last ``queries`` of the keys' positions.
        k: ``[batch, heads, keys, head_dim]``, keys >= queries >= 1.
        v: ``[batch, heads, keys, value_dim]``.
        terms: what the score is made of, by name; ``content``: None; ``fixed``: beta,
            ``[heads, taps]``; ``query`` and ``key``: ``[heads, taps, head_dim]``;
            ``key_only``: ``[heads, head_dim]``; ``tisa``: (a, b, c), each ``[heads,
            kernels]``; ``alibi``: ``[heads]``; ``t5``: ``[heads, buckets]``; ``kerple``:
            (a, b), each ``[heads]``. A table with one head serves all heads. Tables have
            2 n + 1 taps, for the distances -n..n; when ``causal`` n + 1, for -n..0
            (``key``, which is over i - j: for 0..n).
        causal: whether a query sees only its own position and earlier ones.
        beyond: how tables continue beyond their span n: ``clip`` (the edge tap serves all
            farther positions), ``zero``, or ``mask`` (nothing beyond n is seen, whatever
            the terms: a window). The other terms are defined at every distance.
        span: n, where no table says it; only ``mask`` needs it.
        padding_mask: boolean ``[batch, keys]``, True at padding, where keys and values must be
            finite. A query that sees nothing gets zeros.
        dropout_p: probability of dropping a normalised weight.
        scale: of the terms content, query, key and key_only; ``head_dim ** -0.5`` when None.
        impl: ``reference`` (builds a score tensor per head), ``tiled`` (tiles in PyTorch),
            ``native`` (the same with compiled kernels for the CPU) or ``triton`` (kernels for
            GPUs), the last two in float32 or half precision. None: as :func:`lightweight_conv`.
            All but ``reference`` are operators, for torch.compile too; they have
            first derivatives by autograd, none by torch.func or in forward mode.

    Returns:
        ``[batch, heads, queries, value_dim]`` in the dtype of ``v``; scores are float32
        at least.

    Raises:
        ValueError: shapes, terms or options do not go together, or q, k, v, query, key and
            key_only mix float64 with another dtype.
    """
    _check_inputs(q, k, v, padding_mask, dropout_p)
    check(beyond in BEYOND, f"unknown beyond {beyond!r}: choose from {', '.join(BEYOND)}")
    _check_terms(terms, q)
    span = _span(terms, span, causal, beyond)
    scale = q.size(3) ** -0.5 if scale is None else scale
    options = Options(causal, beyond, span, padding_mask, dropout_p, scale)
    otherwise = "reference" if unfit_for_operators() else "tiled"
    attend = choose(impl, IMPLEMENTATIONS, _triton, (q, v), otherwise)
    with without_autocast(q.device.type):
        return attend(q, k, v, terms, options)


def _triton() -> Implementation:
    from . import triton_launch

    return Implementation(triton_launch.attend, triton_launch.unfit)


def _check_inputs(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, dropout_p: float
) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check(x.dim() == 4, f"{name} must be [batch, heads, time, width], not {list(x.shape)}")
        check_floating(name, x)
    wide = {x.dtype == torch.float64 for x in (q, k, v)}
    check(len(wide) == 1, f"float64 goes with float64, not {q.dtype}, {k.dtype} and {v.dtype}")
    check(
        q.shape[:2] == k.shape[:2] == v.shape[:2] and k.size(2) == v.size(2),
        f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not go together",
    )
    check(q.size(3) == k.size(3) >= 1, f"q is {q.size(3)} wide, k {k.size(3)}")
    check(
        1 <= q.size(2) <= k.size(2),
        f"{q.size(2)} queries cannot be the last positions of {k.size(2)} keys",
    )
    check(
        padding_mask is None
        or (padding_mask.dtype == torch.bool and padding_mask.shape == (k.size(0), k.size(2))),
        f"padding_mask must be boolean [batch, keys] = [{k.size(0)}, {k.size(2)}]",
    )
    if not 0 <= dropout_p < 1:  # as in convolutions
        raise ValueError(f"dropout_p must be in [0, 1), not {dropout_p}")


def _check_terms(terms: Terms, q: Tensor) -> None:
    check(isinstance(terms, Mapping), f"terms must be a dict by name: {_choose_terms()}")
    check(len(terms) > 0, f"no terms: {_choose_terms()}")
    for name, parameters in terms.items():
        check(name in TERMS, f"unknown term {name!r}: {_choose_terms()}")
        _check_term(name, parameters, q.size(1), q.size(3))
    for name in _MULTIPLIED.intersection(terms):
        doubles = {x.dtype == torch.float64 for x in (q, terms[name])}
        given = f"q in {q.dtype} and {name} in {terms[name].dtype}"
        check(len(doubles) == 1, f"float64 goes with float64, not {given}")
    check("t5" not in terms or terms["t5"].size(1) % 4 == 0, "t5 needs a multiple of 4 buckets")


def _check_term(
    name: str, parameters: Tensor | tuple[Tensor, ...] | None, heads: int, head_dim: int
) -> None:
    shapes = SHAPES[name]
    if not shapes:
        check(parameters is None, f"{name} takes None")
        return
    tensors = parameters if isinstance(parameters, tuple) else (parameters,)
    count = len(shapes)
    check(len(tensors) == count, f"{name} takes {count} tensors, not {len(tensors)}")
    for x, sides in zip(tensors, shapes, strict=True):
        fits = isinstance(x, Tensor) and x.dim() == len(sides) and x.size(0) in (1, heads)
        fits = fits and x.numel() > 0 and (sides[-1] != "head_dim" or x.size(-1) == head_dim)
        given = list(x.shape) if isinstance(x, Tensor) else x
        sizes = f"{heads} heads and a head_dim of {head_dim}"
        check(fits, f"{name} must be [{', '.join(sides)}], here with {sizes}, not {given}")
        check_floating(name, x)
    check(
        all(x.shape[1:] == tensors[0].shape[1:] for x in tensors),
        f"the tensors of {name} must agree in all but heads: {[list(x.shape) for x in tensors]}",
    )


def _span(terms: Terms, span: int | None, causal: bool, beyond: str) -> int | None:
    """The half-width n that the tables have, or ``span``."""
    # torch.jit.trace gives sizes as tensors
    taps = {int(terms[name].size(1)) for name in TABLE_TERMS if name in terms}
    check(len(taps) <= 1, f"tables of {sorted(taps)} taps: they must have the same span")
    if taps:
        check(
            causal or min(taps) % 2 == 1, f"{min(taps)} taps cannot be centred: give an odd number"
        )
        tables = min(taps) - 1 if causal else min(taps) // 2
        check(span in (None, tables), f"a span of {span}, but tables for {tables}")
        return tables
    check(span is not None or beyond != "mask", "beyond='mask' needs a span")
    whole = span is None or (isinstance(span, Integral) and span >= 0)
    check(whole, f"span must be a whole number >= 0, not {span}")
    return span


def _choose_terms() -> str:
    return f"choose from {', '.join(TERMS)}"
