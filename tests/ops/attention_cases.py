"""Inputs and parameters that the tests of composite attention share."""

import importlib

import torch
from torch import Tensor


def set_small_blocks(monkeypatch) -> None:
    """Blocks of the size of the tests' inputs, so that several are joined."""
    tiles = importlib.import_module("fairseq_convattn.ops.attention.tiles")
    for name, size in (("FEW_QUERIES", 4), ("QUERIES", 8), ("SCORES", 64)):
        monkeypatch.setattr(tiles, name, size)


def table_parameters(terms, make, causal, span, width) -> dict:
    """Those of the terms by name; ``make`` gives a tensor of a shape, after that of the heads."""
    taps = span + 1 if causal else 2 * span + 1
    made = {
        "content": lambda: None,
        "fixed": lambda: make(taps),
        "query": lambda: make(taps, width),
        "key": lambda: make(taps, width),
        "key_only": lambda: make(width),
        "tisa": lambda: (make(3), make(3), make(3)),
        "alibi": lambda: make(),
        "t5": lambda: make(32),
        "kerple": lambda: (make(), make()),
    }
    return {term: made[term]() for term in terms}


def tensors(terms):
    """The parameters of all terms, one after another."""
    for term in terms.values():
        if term is not None:
            yield from term if isinstance(term, tuple) else (term,)


def converted(terms, convert) -> dict:
    """The terms with every tensor converted."""
    return {
        name: x if x is None else tuple(map(convert, x)) if isinstance(x, tuple) else convert(x)
        for name, x in terms.items()
    }


def gradients(y: Tensor, wanted) -> tuple[Tensor, ...]:
    """The output, and its gradients with a weight of its own for every element."""
    weights = torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y).to(y.dtype)
    return y, *torch.autograd.grad(y, wanted, weights, materialize_grads=True)
