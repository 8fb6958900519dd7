"""Composite attention a tile of scores at a time, in matrix products and passes between them.

Neither pass holds more scores than a tile's. The backward pass computes them again; for the
softmax it needs what the forward pass keeps, the logarithms of the sums. Keys that none of a
tile's queries sees are left out: those after a causal tile, those far from a window's, and
the padding at either end of the sentences.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .passes import InPyTorch
from .scores import Layout, Scores, decompose
from .terms import Terms

QUERIES = 512  # of a tile: as many as matrix products like
FEW_QUERIES = 128  # where fewer see fewer keys, or lie along a band
SCORES = 2**18  # of a tile of several heads: few enough for a core's cache
MOST_SCORES = 2**19  # of a tile of one head and many queries


class How(NamedTuple):
    """All that is no tensor.

    Attributes:
        layout: where keys lie, seen from the queries.
        heads: how many.
        passes: computes what is no matrix product, as :class:`InPyTorch` does.
        only_ends: whether the scores have nothing by columns but padding, all of it at the
            sentences' ends.
        visible: None, or of each sentence the first key that is no padding and the end of
            the last one.
        dropout_p: probability of dropping a normalised weight.
        seed: of dropout.
    """

    layout: Layout
    heads: int
    passes: type[InPyTorch]
    only_ends: bool
    visible: list[tuple[int, int]] | None
    dropout_p: float
    seed: int


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms,
    padding_mask: Tensor | None,
    *,
    causal: bool,
    beyond: str,
    span: int | None,
    dropout_p: float,
    scale: float,
    passes: type[InPyTorch] = InPyTorch,
) -> Tensor:
    """Same contract as :func:`reference.attend`; no second derivatives."""
    scores, layout = decompose(
        q, k, v, terms, padding_mask, causal=causal, beyond=beyond, span=span, scale=scale
    )
    seed = int(torch.randint(2**62, ())) if dropout_p > 0 else 0
    visible, only_ends = _visible(padding_mask)
    only_ends = only_ends and "key" not in terms
    how = How(layout, q.size(1), passes, only_ends, visible, dropout_p, seed)
    return _BlockedAttention.apply(how, *scores).to(v.dtype)


def _visible(padding_mask: Tensor | None) -> tuple[list[tuple[int, int]] | None, bool]:
    """``How.visible``, and whether no padding lies between."""
    if padding_mask is None:
        return None, True
    seen = (~padding_mask).int()
    first, end = seen.argmax(1), seen.size(1) - seen.flip(1).argmax(1)
    only_ends = bool((end - first == seen.sum(1)).all())
    return list(zip(first.tolist(), end.tolist(), strict=True)), only_ends


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, how: How, *tensors: Tensor | None):
        scores = _flat(tensors)
        y = scores.v.new_empty(*scores.q.shape[:2], scores.v.size(2))
        log_sums = y.new_empty(*y.shape[:2], 1)
        dropout = _dropout(how, y.device)
        for block in _blocks(scores, how):
            for tile in block.tiles():
                tile.attend(dropout, y, log_sums)
        ctx.save_for_backward(*tensors, y, log_sums)
        ctx.how = how
        return y.unflatten(0, (-1, how.heads))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        *tensors, y, log_sums = ctx.saved_tensors
        scores = _flat(tensors)
        grads = _gradients(tensors, ctx.needs_input_grad[1:], ctx.how.layout)
        flat = _flat(grads)
        dropout, grad = _dropout(ctx.how, y.device), grad.flatten(0, 1)
        for block in _blocks(scores, ctx.how):
            for tile in block.tiles():
                tile.add_gradients(dropout, y, log_sums, grad, flat)
            if grads.curve is not None:
                block.passes.add_curve_gradient(block.curve(grads.curve))
        return None, *grads


def _gradients(tensors: Sequence[Tensor | None], needed: Sequence[bool], layout: Layout) -> Scores:
    """Zeros for what tiles add to; None where nobody needs it."""
    written = {"q", "band", "row_step"} if layout.local else {"q", "k", "v", "band", "row_step"}
    return Scores(
        *(
            (x.new_empty if name in written else x.new_zeros)(x.shape) if need else None
            for name, x, need in zip(Scores._fields, tensors, needed, strict=True)
        )
    )


def _flat(tensors: Sequence[Tensor | None]) -> Scores:
    """With sentences and heads as one dimension; views where they are contiguous."""
    scores = Scores(*tensors)
    flat = (x if x is None else x.flatten(0, 1) for x in scores)
    return Scores(*flat)._replace(curve=scores.curve)


def _dropout(how: How, device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """Gives the factors of dropout, the same ones in the same order of calls."""
    if how.dropout_p == 0:
        return None
    generator = torch.Generator(device).manual_seed(how.seed)
    keep = 1 - how.dropout_p
    return lambda weights: (
        torch.empty_like(weights).bernoulli_(keep, generator=generator).div_(keep)
    )


def _blocks(scores: Scores, how: How) -> Iterator["Block"]:
    queries, keys, scratch = scores.q.size(1), scores.k.size(1), {}
    most = min(QUERIES, max(FEW_QUERIES, MOST_SCORES // keys))
    if how.layout.local or scores.band is not None:
        most = FEW_QUERIES
    for start in range(0, queries, most):
        rows = slice(start, min(start + most, queries))
        columns = _columns(how.layout, rows, keys)
        size = (rows.stop - start) * (columns.stop - columns.start)
        groups = -(-how.heads // max(1, SCORES // size))
        for group in range(groups):
            heads = slice(how.heads * group // groups, how.heads * (group + 1) // groups)
            yield Block(scores, how, rows, columns, heads, scratch)


def _columns(layout: Layout, rows: slice, keys: int) -> slice:
    """Of the keys that some of the queries sees."""
    first, last = 0, keys
    if layout.reach is not None:
        first = max(0, layout.offset + rows.start - layout.reach)
        last = min(keys, layout.offset + rows.stop + layout.reach)
    if layout.causal:
        last = layout.offset + rows.stop
    return slice(first, last)


class Block:
    """Some queries of some heads, of all sentences.

    Attributes:
        rows, columns, heads: which queries, the keys that they see, and which heads.
        shape: how many queries and keys.
        count: how many heads.
        diagonals: where the curve has the block's, from the last query's first key on.
        passes: what is no matrix product.
    """

    def __init__(
        self,
        scores: Scores,
        how: How,
        rows: slice,
        columns: slice,
        heads: slice,
        scratch: dict[str, Tensor],
    ):
        self.scores, self.how, self.scratch = scores, how, scratch
        self.rows, self.columns, self.heads = rows, columns, heads
        self.shape = rows.stop - rows.start, columns.stop - columns.start
        self.count = heads.stop - heads.start
        first = columns.start - rows.stop + scores.q.size(1)
        self.diagonals = slice(first, first + sum(self.shape) - 1)
        self.passes = how.passes(self)

    def tiles(self) -> Iterator["Tile"]:
        """The scores that are computed at once: of one sentence, or of all heads of some."""
        heads = self.how.heads
        sentences = self.scores.q.size(0) // heads
        fitting = 1
        if self.count == heads:
            fitting = max(1, SCORES // (heads * math.prod(self.shape)))
        for first in range(0, sentences, fitting):
            last = min(first + fitting, sentences)
            some = slice(first * heads + self.heads.start, (last - 1) * heads + self.heads.stop)
            columns, hiding = self._seen(slice(first, last))
            yield Tile(self, some, columns, hiding)

    def _seen(self, sentences: slice) -> tuple[slice, bool]:
        """The columns without padding at the ends, but with those of the band, and one at
        least; and whether ``scores.column`` says more of them than zero."""
        first, last = self.columns.start, self.columns.stop
        if self.how.visible is None:
            return self.columns, self.scores.column is not None
        starts, ends = zip(*self.how.visible[sentences], strict=True)
        start, end = min(starts), max(ends)
        if self.scores.band is not None:
            start = min(start, self.how.layout.offset + self.rows.start)
            end = max(end, self.how.layout.offset + self.rows.stop)
        first = min(max(first, start), last - 1)
        last = max(min(last, end), first + 1)
        padded = first < max(starts) or last > min(ends)
        return slice(first, last), padded or not self.how.only_ends

    def curve(self, x: Tensor) -> Tensor:
        """View of ``[heads or 1, ...]`` the block's heads and diagonals."""
        return x[self.heads if x.size(0) > 1 else slice(None), self.diagonals]

    def memory(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """float32, or wider where the scores are, which the next one of this name takes over."""
        size = math.prod(shape)
        if name not in self.scratch or self.scratch[name].numel() < size:
            self.scratch[name] = self.scores.curve.new_empty(size)
        return self.scratch[name][:size].view(shape)


class Tile:
    """A block's scores for some sentences.

    Attributes:
        some: which of the n sentences' heads.
        columns: the keys that some query sees.
        adds_column: whether ``scores.column`` is needed.
        shape: how many of all three.
        own: the first query's own position among the columns.
        beyond: the columns that some query has beyond the band's right.
    """

    def __init__(self, block: Block, some: slice, columns: slice, adds_column: bool):
        self.block, self.some, self.columns = block, some, columns
        self.layout, self.scores = block.how.layout, block.scores
        self.shape = some.stop - some.start, block.shape[0], columns.stop - columns.start
        self.own = self.layout.offset + block.rows.start - columns.start
        self.adds_column = adds_column
        self.beyond = slice(self.own + self.layout.right + 1, self.shape[2])

    def attend(
        self, dropout: Callable[[Tensor], Tensor] | None, y: Tensor, log_sums: Tensor
    ) -> None:
        """Write the weighted sums of values, and the logarithms of the weights' sums."""
        s, sums = self.block.passes.powers(self, self.rows_of(log_sums))
        if dropout is not None:
            s.mul_(dropout(s))
        self.rows_of(y).baddbmm_(s, self.columns_of(self.scores.v), beta=0).div_(sums)

    def add_gradients(
        self,
        dropout: Callable[[Tensor], Tensor] | None,
        y: Tensor,
        log_sums: Tensor,
        grad: Tensor,
        grads: Scores,
    ) -> None:
        """Add what the tile contributes to all gradients; the curve's remain with the passes."""
        passes, scores, scale = self.block.passes, self.scores, self.layout.scale
        q, k, v = (
            self.rows_of(scores.q),
            self.columns_of(scores.k),
            self.columns_of(scores.v),
        )
        y, grad = self.rows_of(y), self.rows_of(grad)
        weights = passes.weights(self, self.rows_of(log_sums))
        s = passes.room(self).baddbmm_(grad, v.transpose(1, 2), beta=0)
        dropped = weights
        if dropout is not None:
            kept = dropout(weights)
            s.mul_(kept)
            dropped = kept.mul_(weights)
        self._add_to_columns(grads.v, dropped, grad, 1.0)
        passes.gradient(self, weights, s, (grad * y).sum(-1, keepdim=True), grads)
        if grads.q is not None:
            self.rows_of(grads.q).baddbmm_(s, k, beta=0, alpha=scale)
        self._add_to_columns(grads.k, s, q, scale)
        if grads.column is not None:
            self.columns_of(grads.column).add_(s.sum(1))

    def _add_to_columns(self, grads: Tensor | None, s: Tensor, rows: Tensor, scale: float) -> None:
        """Add ``s^T rows scale``; write it, with zeros at the ends, if nothing is there yet."""
        if grads is None:
            return
        fresh = not self.layout.local and self.block.rows.start == 0
        if fresh:
            grads[self.some, : self.columns.start] = 0
            grads[self.some, self.columns.stop :] = 0
        self.columns_of(grads).baddbmm_(s.transpose(1, 2), rows, beta=not fresh, alpha=scale)

    def rows_of(self, x: Tensor) -> Tensor:
        """View of ``[sentences and heads, queries, ...]``: the tile's, ``[n, rows, ...]``."""
        return x[self.some, self.block.rows]

    def columns_of(self, x: Tensor) -> Tensor:
        """Likewise of ``[sentences and heads, keys, ...]``."""
        return x[self.some, self.columns]
