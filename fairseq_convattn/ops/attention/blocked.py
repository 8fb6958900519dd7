"""Composite attention a tile of scores at a time, in matrix products.

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

from .scores import HIDDEN, Layout, Scores, decompose
from .terms import Terms

QUERIES = 512  # of a tile: as many as matrix products like
FEW_QUERIES = 128  # where fewer see fewer keys, or lie along a band
SCORES = 2**18  # of a tile, at best: few enough for a core's cache
BEYOND = "beyond"  # 1 where a key lies beyond a query's band, from the first such key on
LOG2_E = math.log2(math.e)


class How(NamedTuple):
    """All that is no tensor.

    Attributes:
        layout: where keys lie, seen from the queries.
        heads: how many.
        only_ends: whether the scores have nothing by columns but padding, all of it at the
            sentences' ends.
        visible: None, or of each sentence the first key that is no padding and the end of
            the last one.
        dropout_p: probability of dropping a normalised weight.
        seed: of dropout.
    """

    layout: Layout
    heads: int
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
) -> Tensor:
    """Same contract as :func:`reference.attend`; no second derivatives."""
    scores, layout = decompose(
        q, k, v, terms, padding_mask, causal=causal, beyond=beyond, span=span, scale=scale
    )
    seed = int(torch.randint(2**62, ())) if dropout_p > 0 else 0
    visible, only_ends = _visible(padding_mask)
    how = How(layout, q.size(1), only_ends and "key" not in terms, visible, dropout_p, seed)
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
                s = tile.add_gradients(dropout, y, log_sums, grad, flat)
                if grads.curve is not None:
                    block.add_to_diagonals(tile, s)
            if grads.curve is not None:
                block.add_curve_gradient(grads.curve)
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


def _blocks(scores: Scores, how: How) -> Iterator["_Block"]:
    queries, keys, scratch = scores.q.size(1), scores.k.size(1), {}
    most = min(QUERIES, max(FEW_QUERIES, 2 * SCORES // keys))
    if how.layout.local or scores.band is not None:
        most = FEW_QUERIES
    if scores.row_step is not None or scores.column_step is not None:
        scratch[BEYOND] = scores.q.new_ones(min(most, queries), keys).triu_()
    for start in range(0, queries, most):
        rows = slice(start, min(start + most, queries))
        columns = _columns(how.layout, rows, keys)
        size = (rows.stop - start) * (columns.stop - columns.start)
        groups = -(-how.heads // max(1, SCORES // size))
        for group in range(groups):
            heads = slice(how.heads * group // groups, how.heads * (group + 1) // groups)
            yield _Block(scores, how, rows, columns, heads, scratch)


def _columns(layout: Layout, rows: slice, keys: int) -> slice:
    """Of the keys that some of the queries sees."""
    first, last = 0, keys
    if layout.reach is not None:
        first = max(0, layout.offset + rows.start - layout.reach)
        last = min(keys, layout.offset + rows.stop + layout.reach)
    if layout.causal:
        last = layout.offset + rows.stop
    return slice(first, last)


def _scratch(scratch: dict[str, Tensor], name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory that the next one of this name takes over."""
    size = math.prod(shape)
    if name not in scratch or scratch[name].numel() < size:
        scratch[name] = like.new_empty(size)
    return scratch[name][:size].view(shape)


class _Block:
    """Some queries of some heads, of all sentences.

    Attributes:
        rows, columns, heads: which queries, the keys that they see, and which heads.
        shape: how many queries and keys.
        count: how many heads.
        diagonals: where the curve has the block's, from the last query's first key on.
        curves: the curve's entries, to base 2, ``[heads or 1, rows, columns]``.
        sums: of the scores' gradients over the sentences, ``[heads, rows, diagonals]``.
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
        curve = self._curve(scores.curve).unsqueeze(1)
        self.curves = self._skewed(
            self._by_diagonals("curves", curve.size(0)).copy_(curve * LOG2_E)
        )
        self.sums = None

    def tiles(self) -> Iterator["_Tile"]:
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
            yield _Tile(self, some, columns, hiding)

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

    def add_to_diagonals(self, tile: "_Tile", s: Tensor) -> None:
        """Add scores' gradients to the sums."""
        if self.sums is None:
            self.sums = self._by_diagonals("sums", self.count).zero_()
        first = tile.columns.start - self.columns.start
        sums = self._skewed(self.sums)[:, :, first : first + s.size(2)]
        sums += s if s.size(0) == self.count else s.unflatten(0, (-1, self.count)).sum(0)

    def add_curve_gradient(self, grad: Tensor) -> None:
        """Add the sums over the diagonals."""
        sums, grad = self.sums.sum(1), self._curve(grad)
        grad += sums if grad.size(0) == self.count else sums.sum(0, keepdim=True)

    def _by_diagonals(self, name: str, heads: int) -> Tensor:
        """``[heads, rows, diagonals]``."""
        shape = heads, self.shape[0], sum(self.shape) - 1
        return _scratch(self.scratch, name, shape, self.scores.curve)

    def _skewed(self, x: Tensor) -> Tensor:
        """View of ``[heads, rows, diagonals]`` by columns, ``[heads, rows, columns]``."""
        rows, columns = self.shape
        return x.as_strided((x.size(0), rows, columns), (x.stride(0), x.stride(1) - 1, 1), rows - 1)

    def _curve(self, x: Tensor) -> Tensor:
        """Of ``[heads or 1, ...]`` the block's heads and diagonals."""
        return x[self.heads if x.size(0) > 1 else slice(None), self.diagonals]


class _Tile:
    """A block's scores for some sentences.

    Attributes:
        some: which of the n sentences' heads.
        columns: the keys that some query sees.
        adds_column: whether ``scores.column`` is needed.
        shape: how many of all three.
        own: the first query's own position among the columns.
        beyond: the columns that some query has beyond the band's right.
    """

    def __init__(self, block: _Block, some: slice, columns: slice, adds_column: bool):
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
        s = self._logits(None)
        largest = s.amax(-1, keepdim=True).clamp_(min=HIDDEN / 2)
        sums = s.sub_(largest).exp2_().sum(-1, keepdim=True)
        sums.clamp_(min=0.5)  # below only where a query sees nothing
        if dropout is not None:
            s.mul_(dropout(s))
        self._rows(log_sums).copy_(largest.add_(sums.log2()))
        self._rows(y).baddbmm_(s, self._columns(self.scores.v), beta=0).div_(sums)

    def add_gradients(
        self,
        dropout: Callable[[Tensor], Tensor] | None,
        y: Tensor,
        log_sums: Tensor,
        grad: Tensor,
        grads: Scores,
    ) -> Tensor:
        """Add what the tile contributes to all gradients but the curve's.

        Returns:
            The scores' gradients, ``[n, rows, columns]``.
        """
        scores, scale = self.scores, self.layout.scale
        q, k, v = self._rows(scores.q), self._columns(scores.k), self._columns(scores.v)
        y, grad = self._rows(y), self._rows(grad)
        weights = self._logits(self._rows(log_sums)).exp2_()
        framed, s = self._framed("gradients")
        s.baddbmm_(grad, v.transpose(1, 2), beta=0)
        dropped = weights
        if dropout is not None:
            kept = dropout(weights)
            s.mul_(kept)
            dropped = kept.mul_(weights)
        self._add_to_columns(grads.v, dropped, grad, 1.0)
        s.sub_((grad * y).sum(-1, keepdim=True)).mul_(weights)
        if grads.q is not None:
            self._rows(grads.q).baddbmm_(s, k, beta=0, alpha=scale)
        self._add_to_columns(grads.k, s, q, scale)
        if grads.column is not None:
            self._columns(grads.column).add_(s.sum(1))
        if grads.band is not None:
            self._clear_frame(framed)
            self._rows(grads.band).copy_(self._along_band(framed))
        if grads.row_step is not None or grads.column_step is not None:
            region, inside = self._beyond_band(s)
            region = torch.mul(region, inside, out=weights[:, :, : inside.size(1)])
            if grads.row_step is not None:
                self._rows(grads.row_step).copy_(region.sum(2))
            if grads.column_step is not None:
                self._columns(grads.column_step)[:, self.beyond].add_(region.sum(1))
        return s

    def _add_to_columns(self, grads: Tensor | None, s: Tensor, rows: Tensor, scale: float) -> None:
        """Add ``s^T rows scale``; write it, with zeros at the ends, if nothing is there yet."""
        if grads is None:
            return
        fresh = not self.layout.local and self.block.rows.start == 0
        if fresh:
            grads[self.some, : self.columns.start] = 0
            grads[self.some, self.columns.stop :] = 0
        self._columns(grads).baddbmm_(s.transpose(1, 2), rows, beta=not fresh, alpha=scale)

    def _logits(self, less: Tensor | None) -> Tensor:
        """``[n, rows, columns]``, minus ``less``, ``[n, rows, 1]``; to base 2, as MKL's exp
        is many times slower near zero."""
        scores = self.scores
        framed, s = self._framed("scores")
        by_sentence = s.unflatten(0, (-1, self.block.count))
        curves = self._curves()
        if self.adds_column:
            curves = torch.add(curves, self._column(), alpha=LOG2_E, out=by_sentence)
        if less is not None:
            torch.sub(curves, less.unflatten(0, (-1, self.block.count)), out=by_sentence)
        elif not self.adds_column:
            by_sentence.copy_(curves)
        q, k = self._rows(scores.q), self._columns(scores.k)
        s.baddbmm_(q, k.transpose(1, 2), alpha=self.layout.scale * LOG2_E)
        if scores.band is not None:
            self._along_band(framed).add_(self._rows(scores.band), alpha=LOG2_E)
        if scores.row_step is not None:
            region, inside = self._beyond_band(s)
            region.addcmul_(inside, self._rows(scores.row_step).unsqueeze(2), value=LOG2_E)
        if scores.column_step is not None:
            region, inside = self._beyond_band(s)
            step = self._columns(scores.column_step)[:, self.beyond]
            region.addcmul_(inside, step.unsqueeze(1), value=LOG2_E)
        return s

    def _curves(self) -> Tensor:
        """``[heads or 1, rows, columns]``."""
        first = self.columns.start - self.block.columns.start
        return self.block.curves[:, :, first : first + self.shape[2]]

    def _column(self) -> Tensor:
        """``[sentences, heads, 1, columns]``."""
        return self._columns(self.scores.column).unflatten(0, (-1, self.block.count)).unsqueeze(2)

    def _rows(self, x: Tensor) -> Tensor:
        """View of ``[sentences and heads, queries, ...]``: the tile's, ``[n, rows, ...]``."""
        return x[self.some, self.block.rows]

    def _columns(self, x: Tensor) -> Tensor:
        """Likewise of ``[sentences and heads, keys, ...]``."""
        return x[self.some, self.columns]

    def _framed(self, name: str) -> tuple[Tensor, Tensor]:
        """``[n, rows, columns]`` inside a frame of columns, into which the band of the
        first and the last queries reaches; with the frame, and without."""
        n, rows, columns = self.shape
        left, right = self.layout.left, self.layout.right
        shape = n, rows, left + columns + right
        framed = _scratch(self.block.scratch, name, shape, self.scores.q)
        return framed, framed[:, :, left : left + columns]

    def _clear_frame(self, framed: Tensor) -> None:
        framed[:, :, : self.layout.left] = 0
        framed[:, :, self.layout.left + self.shape[2] :] = 0

    def _along_band(self, framed: Tensor) -> Tensor:
        """View of the diagonals of the band, ``[n, rows, taps]``."""
        taps = self.layout.left + 1 + self.layout.right
        strides = (framed.stride(0), framed.stride(1) + 1, 1)
        return framed.as_strided((*framed.shape[:2], taps), strides, self.own)

    def _beyond_band(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The columns where keys beyond the band's right begin, and 1 where they are so."""
        region = s[:, :, self.beyond]
        return region, self.block.scratch[BEYOND][: region.size(1), : region.size(2)]
