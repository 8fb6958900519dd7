"""Composite attention as PyTorch operators, with one schema for all implementations."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import operators
from .dropout import Dropout
from .scores import Layout, Scores, decompose
from .terms import Options, Terms, wide

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor curve, Tensor? column, Tensor? band, Tensor? row_step, "
    "Tensor? column_step, Tensor? seed, float dropout_p, SymInt left, SymInt right, SymInt? reach, "
    "bool causal, float scale, SymInt? before, SymInt? after"
)
_TENSORS = len(Scores._fields)


def register(
    name: str,
    forward: Callable,
    backward: Callable,
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[str, ...],
    margin: int | None = None,
    few_keys: bool = False,
) -> Callable[..., Tensor]:
    """Make ``convattn::name`` of two functions.

    Args:
        forward: from scores, layout and dropout (or None) returns the outputs ``[batch, heads,
            queries, value_dim]`` and ``lse`` ``[batch, heads, queries]``, the logarithms of the
            sums of exponentials, in the base that ``backward`` expects.
        backward: from the gradient, the outputs, ``lse``, the arguments of ``forward`` and a flag
            for each tensor of the scores returns the wanted gradients, None for others.
        dtypes: supported dtypes of q, k and v.
        devices: PyTorch's dispatch keys.
        margin: as :func:`decompose` takes it.
        few_keys: whether keys may be fewer than queries, where neither sees only some of the others
            by position.

    Returns:
        A function with the contract of :func:`reference.attend`; no second derivatives.
    """

    def compute(*inputs) -> tuple[Tensor, Tensor]:
        scores, *others = _unpack(inputs)
        _check(scores, *others, dtypes, margin, few_keys)
        return forward(scores, *others)

    def compute_backward(grad: Tensor, y: Tensor, lse: Tensor, *inputs) -> Scores:
        *inputs, wanted = inputs
        scores, *others = _unpack(inputs)
        _check(scores, *others, dtypes, margin, few_keys)
        results = (*scores.q.shape[:3], scores.v.size(3))
        fits = grad.shape == y.shape == results and lse.shape == results[:3]
        fits = fits and grad.dtype == y.dtype == scores.v.dtype and lse.dtype == scores.curve.dtype
        if not fits:
            given = {"grad": grad, "y": y, "lse": lse}.items()
            raise ValueError(", ".join(f"{name} {list(x.shape)} {x.dtype}" for name, x in given))
        return backward(grad, y, lse, scores, *others, wanted)

    operator = operators.register(
        name,
        _INPUTS,
        "(Tensor, Tensor)",
        compute,
        compute_backward,
        _fake,
        devices,
        differentiable=_TENSORS,
        kept=(0, 1),
    )
    return functools.partial(_attend, operator, "CUDA" in devices, margin)


def _attend(
    operator: Callable,
    seed_on_device: bool,
    margin: int | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    options: Options,
) -> Tensor:
    scores, layout = decompose(q, k, v, terms, options, margin)
    if not all(x is None or x.device == v.device for x in scores):
        found = ", ".join(sorted({str(x.device) for x in scores if x is not None}))
        raise ValueError(f"q, k, v and the terms must be on one device, not on {found}")
    seed = None
    if options.dropout_p > 0:  # on the device it is drawn anew when a CUDA graph is replayed
        seed = torch.randint(2**62, (), device=q.device if seed_on_device else "cpu")
    y, _ = operator(*scores, seed, options.dropout_p, *layout)
    return y


def _unpack(inputs: Sequence) -> tuple[Scores, Layout, Dropout | None]:
    seed, dropout_p, *layout = inputs[_TENSORS:]
    dropout = None if seed is None else Dropout(dropout_p, seed)
    return Scores(*inputs[:_TENSORS]), Layout(*layout), dropout


def _check(
    scores: Scores,
    layout: Layout,
    dropout: Dropout | None,
    dtypes: tuple[torch.dtype, ...],
    margin: int | None,
    few_keys: bool,
) -> None:
    """Check what the kernels rely on, for direct calls; :func:`composite_attention` has better
    messages."""
    q, k, v, curve, *added = scores
    fits = q.dim() == k.dim() == v.dim() == 4 and {q.dtype, k.dtype, v.dtype} <= set(dtypes)
    fits = fits and q.shape[:2] == k.shape[:2] == v.shape[:2] and q.size(3) == k.size(3)
    fits = fits and k.size(2) == v.size(2) and min(q.size(2), k.size(2)) >= 1
    alike = few_keys and not layout.local and all(x is None for x in added[1:])
    fits = fits and (q.size(2) <= k.size(2) or alike) and min(layout.left, layout.right) >= 0
    if margin is None:
        fits = fits and layout.before is None and layout.after is None
    else:
        fits = fits and layout.before is not None and layout.after is not None
        fits = fits and layout.before >= margin + layout.left and layout.after >= margin
    if fits:
        by_query, by_key = q.shape[:3], k.shape[:3]
        distances = sum(layout.extent(q.size(2), k.size(2))) + 1
        curves = {(heads, distances) for heads in (1, q.size(1))}
        wide_dtype = torch.promote_types(k.dtype, torch.float32)
        band = (*by_query, layout.left + 1 + layout.right)
        shapes = (by_key, band, by_query, by_key)
        fits = curve.shape in curves and all(
            x is None or x.shape == shape for x, shape in zip(added, shapes, strict=True)
        )
        fits = fits and all(
            x is None or (x.is_contiguous() and x.dtype == wide_dtype) for x in (curve, *added)
        )
    if not fits or (dropout is not None and dropout.seed.numel() != 1):
        given = {name: x for name, x in scores._asdict().items() if x is not None}
        given = [f"{name} {list(x.shape)} {x.dtype}" for name, x in given.items()]
        raise ValueError(", ".join([*given, str(layout)]))


def _fake(q: Tensor, k: Tensor, v: Tensor, *_) -> tuple[Tensor, Tensor]:
    y = v.new_empty(*q.shape[:3], v.size(3))
    return y, wide(y.new_empty(0)).new_empty(q.shape[:3])
