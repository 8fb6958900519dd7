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
    "bool causal, float scale"
)
_TENSORS = len(Scores._fields)


def register(
    name: str, forward: Callable, backward: Callable, devices: tuple[str, ...]
) -> Callable[..., Tensor]:
    """Make ``convattn::name`` of two functions.

    Args:
        forward: from scores, layout and dropout (or None) returns the outputs ``[batch, heads,
            queries, value_dim]`` and ``lse`` ``[batch, heads, queries]``, the logarithms of the
            sums of exponentials, in the base that ``backward`` expects.
        backward: from the gradient, the outputs, ``lse``, the arguments of ``forward`` and a flag
            for each tensor of the scores returns the wanted gradients, None for others.
        devices: PyTorch's dispatch keys.

    Returns:
        A function with the contract of :func:`reference.attend`; no second derivatives.
    """

    def compute(*inputs) -> tuple[Tensor, Tensor]:
        return forward(*_unpack(inputs))

    def compute_backward(grad: Tensor, y: Tensor, lse: Tensor, *inputs) -> Scores:
        *inputs, wanted = inputs
        return backward(grad, y, lse, *_unpack(inputs), wanted)

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
    return functools.partial(_attend, operator, "CUDA" in devices)


def _attend(
    operator: Callable,
    seed_on_device: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    options: Options,
) -> Tensor:
    scores, layout = decompose(q, k, v, terms, options)
    seed = None
    if options.dropout_p > 0:  # on the device it is drawn anew when a CUDA graph is replayed
        seed = torch.randint(2**62, (), device=q.device if seed_on_device else "cpu")
    y, _ = operator(*scores, seed, options.dropout_p, *layout)
    return y.to(v.dtype)


def _unpack(inputs: Sequence) -> tuple[Scores, Layout, Dropout | None]:
    seed, dropout_p, *layout = inputs[_TENSORS:]
    dropout = None if seed is None else Dropout(dropout_p, seed)
    return Scores(*inputs[:_TENSORS]), Layout(*layout), dropout


def _fake(q: Tensor, k: Tensor, v: Tensor, *_) -> tuple[Tensor, Tensor]:
    y = v.new_empty(*q.shape[:3], v.size(3))
    return y, wide(y.new_empty(0)).new_empty(q.shape[:3])
