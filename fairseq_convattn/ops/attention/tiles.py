"""Composite attention a tile of scores at a time: matrix products, and passes between them.

Forward and backward hold the scores of one tile at a time. The backward pass computes them again
and takes the softmax from the logarithms of sums that the forward pass keeps. Keys that none of a
tile's queries sees are left out: those after a causal tile, those far from a window's, and
the padding at either end of the sentences. Subclasses of :class:`Passes` compute everything but the
matrix products. Scores are to base 2, as MKL's exp is many times slower near zero.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .dropout import Dropout
from .operators import register
from .scores import HIDDEN, Layout, Scores
from .terms import Options, Terms, wide

QUERIES = 512  # of a tile: as many as matrix products like
FEW_QUERIES = 128  # where fewer see fewer keys, or lie along a band
SCORES = 2**18  # of a tile of several heads: few enough for a core's cache
MOST_SCORES = 2**19  # of a tile of one head and many queries
LOG2_E = math.log2(math.e)


def register_passes(
    name: str, passes: type["Passes"], dtypes: tuple[torch.dtype, ...], device: str
) -> Callable[..., Tensor]:
    """``convattn::name`` with the products here and these passes; see :func:`register`."""
    forward, backward = functools.partial(_forward, passes), functools.partial(_backward, passes)
    attend_wide = register(name, forward, backward, dtypes, (device,))

    def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, options: Options) -> Tensor:
        """Same contract as :func:`reference.attend`; no second derivatives."""
        return attend_wide(wide(q), wide(k), wide(v), terms, options).to(v.dtype)

    return attend


def _forward(
    passes: type["Passes"], scores: Scores, layout: Layout, dropout: Dropout | None
) -> tuple[Tensor, Tensor]:
    problem = Problem(scores, layout)
    y = scores.v.new_empty(*scores.q.shape[:3], scores.v.size(3))
    lse = y.new_empty(y.shape[:3])
    flat = y.flatten(0, 1), lse.flatten(0, 1).unsqueeze(2)
    for block in problem.blocks():
        mine = passes(block, dropout)
        for tile in block.tiles():
            tile.attend(mine, *flat)
    return y, lse


def _backward(
    passes: type["Passes"],
    grad: Tensor,
    y: Tensor,
    lse: Tensor,
    scores: Scores,
    layout: Layout,
    dropout: Dropout | None,
    wanted: Sequence[bool],
) -> Scores:
    problem = Problem(scores, layout)
    grads = _gradients(scores, wanted, layout)
    flat_grads = _flat(grads)
    flat = y.flatten(0, 1), lse.flatten(0, 1).unsqueeze(2), grad.flatten(0, 1)
    for block in problem.blocks():
        mine = passes(block, dropout)
        for tile in block.tiles():
            tile.add_gradients(mine, *flat, flat_grads)
        if grads.curve is not None:
            mine.add_curve_gradient(block.curve(grads.curve))
    return grads


def _gradients(scores: Scores, wanted: Sequence[bool], layout: Layout) -> Scores:
    """Memory for the wanted gradients, None for others; zeros for those that tiles add to."""
    written = {"q", "band", "row_step"} if layout.local else {"q", "k", "v", "band", "row_step"}
    return Scores(
        *(
            (x.new_empty if name in written else x.new_zeros)(x.shape) if want else None
            for name, x, want in zip(Scores._fields, scores, wanted, strict=True)
        )
    )


def _flat(scores: Scores) -> Scores:
    """The tensors with sentences and heads as one dimension; views if they are contiguous."""
    flat = (x if x is None else x.flatten(0, 1) for x in scores)
    return Scores(*flat)._replace(curve=scores.curve)


class Problem:
    """All queries of all heads and sentences.

    Attributes:
        scores: with sentences and heads as one dimension.
        layout: where keys lie, seen from the queries.
        heads: how many.
    """

    def __init__(self, scores: Scores, layout: Layout):
        self.scores, self.layout, self.heads = _flat(scores), layout, scores.q.size(1)
        self._find_visible(scores.column)
        self._scratch: dict[str, Tensor] = {}

    def _find_visible(self, column: Tensor | None) -> None:
        """Find each sentence's range of keys between padding at its ends, and whether ``column``
        holds only such padding."""
        self._visible, self._only_ends = None, False
        if column is None:
            return
        padded = column[:, 0] <= HIDDEN / 2
        seen = (~padded).int()
        first, end = seen.argmax(1), seen.size(1) - seen.flip(1).argmax(1)
        at_ends = (end - first == seen.sum(1)).all()
        self._only_ends = bool(at_ends & ~column.masked_fill(padded.unsqueeze(1), 0).any())
        self._visible = list(zip(first.tolist(), end.tolist(), strict=True))

    def blocks(self) -> Iterator["Block"]:
        """Blocks of queries, with as many heads as fit into the cache."""
        queries, keys = self.scores.q.size(1), self.scores.k.size(1)
        most = min(QUERIES, max(FEW_QUERIES, MOST_SCORES // keys))
        if self.layout.local or self.scores.band is not None:
            most = FEW_QUERIES
        for start in range(0, queries, most):
            rows = slice(start, min(start + most, queries))
            columns = self._columns(rows)
            size = (rows.stop - start) * (columns.stop - columns.start)
            groups = -(-self.heads // max(1, SCORES // size))
            for group in range(groups):
                first, last = (self.heads * n // groups for n in (group, group + 1))
                yield Block(self, rows, columns, slice(first, last))

    def _columns(self, rows: slice) -> slice:
        """The keys that some of the queries may see."""
        first, last = 0, self.scores.k.size(1)
        offset, reach = self.scores.offset, self.layout.reach
        if reach is not None:
            first = max(0, offset + rows.start - reach)
            last = min(last, offset + rows.stop + reach)
        if self.layout.causal:
            last = offset + rows.stop
        return slice(first, last)

    def seen(self, rows: slice, columns: slice, sentences: slice) -> tuple[slice, bool]:
        """Visible columns of these sentences, and whether ``scores.column`` must be added.

        Padding at the ends is left out, except where the band reaches; at least one column
        remains."""
        if self._visible is None:
            return columns, False
        first, last = columns.start, columns.stop
        starts, ends = zip(*self._visible[sentences], strict=True)
        start, end = min(starts), max(ends)
        if self.scores.band is not None:
            start = min(start, self.scores.offset + rows.start)
            end = max(end, self.scores.offset + rows.stop)
        first = min(max(first, start), last - 1)
        last = max(min(last, end), first + 1)
        padded = first < max(starts) or last > min(ends)
        return slice(first, last), padded or not self._only_ends

    def memory(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Scratch memory in the dtype of the curve; the next call with this name reuses it."""
        size = math.prod(shape)
        if name not in self._scratch or self._scratch[name].numel() < size:
            self._scratch[name] = self.scores.curve.new_empty(size)
        return self._scratch[name][:size].view(shape)

    def upper_triangle(self, rows: int) -> Tensor:
        """Ones on the diagonal and above, ``[rows or more, keys]``."""
        if "triangle" not in self._scratch or self._scratch["triangle"].size(0) < rows:
            keys = self.scores.k.size(1)
            self._scratch["triangle"] = self.scores.curve.new_ones(rows, keys).triu_()
        return self._scratch["triangle"]


class Block:
    """Some queries of some heads, of all sentences.

    Attributes:
        rows, columns, heads: slices of the queries, of the keys that they see, and of the heads.
        shape: numbers of queries and keys.
        count: number of heads.
        diagonals: the block's slice of the curve, from the last query's first key on.
    """

    def __init__(self, problem: Problem, rows: slice, columns: slice, heads: slice):
        self.problem, self.rows, self.columns, self.heads = problem, rows, columns, heads
        self.shape = rows.stop - rows.start, columns.stop - columns.start
        self.count = heads.stop - heads.start
        first = columns.start - rows.stop + problem.scores.q.size(1)
        self.diagonals = slice(first, first + sum(self.shape) - 1)

    def tiles(self) -> Iterator["Tile"]:
        """Tiles of scores that are computed at once: for one sentence, or for all heads of
        several."""
        heads = self.problem.heads
        sentences = self.problem.scores.q.size(0) // heads
        fitting = 1
        if self.count == heads:
            fitting = max(1, SCORES // (heads * math.prod(self.shape)))
        for first in range(0, sentences, fitting):
            last = min(first + fitting, sentences)
            some = slice(first * heads + self.heads.start, (last - 1) * heads + self.heads.stop)
            columns, hiding = self.problem.seen(self.rows, self.columns, slice(first, last))
            yield Tile(self, some, columns, hiding)

    def curve(self, x: Tensor) -> Tensor:
        """View of ``[heads or 1, ...]`` the block's heads and diagonals."""
        return x[self.heads if x.size(0) > 1 else slice(None), self.diagonals]


class Tile:
    """A block's scores for some sentences.

    Attributes:
        some: slice of the heads of all sentences.
        columns: slice of the keys that some query sees.
        adds_column: whether ``scores.column`` must be added.
        shape: numbers of heads, queries and keys.
        first: the first column, counted in the block.
        first_row: the number of the first row, counted in all heads of all sentences.
        own: the first query's own position among the columns.
        beyond: the columns that lie to the right of some query's band.
    """

    def __init__(self, block: Block, some: slice, columns: slice, adds_column: bool):
        self.block, self.some, self.columns = block, some, columns
        self.layout, self.scores = block.problem.layout, block.problem.scores
        self.shape = some.stop - some.start, block.shape[0], columns.stop - columns.start
        self.first = columns.start - block.columns.start
        self.first_row = some.start * self.scores.q.size(1) + block.rows.start
        self.own = self.scores.offset + block.rows.start - columns.start
        self.adds_column = adds_column
        self.beyond = slice(self.own + self.layout.right + 1, self.shape[2])

    def attend(self, passes: "Passes", y: Tensor, lse: Tensor) -> None:
        """Write the weighted sums of values to ``y``, and the logarithms of sums to ``lse``."""
        s, sums = passes.unnormalized_weights(self, self.rows_of(lse))
        self.rows_of(y).baddbmm_(s, self.columns_of(self.scores.v), beta=0).div_(sums)

    def add_gradients(
        self,
        passes: "Passes",
        y: Tensor,
        lse: Tensor,
        grad: Tensor,
        grads: Scores,
    ) -> None:
        """Add the tile's share to all gradients; the curve's is collected by ``passes``."""
        scores, scale = self.scores, self.layout.scale
        q, k, v = self.rows_of(scores.q), self.columns_of(scores.k), self.columns_of(scores.v)
        y, grad = self.rows_of(y), self.rows_of(grad)
        weights = passes.weights(self, self.rows_of(lse))
        s = passes.buffer(self).baddbmm_(grad, v.transpose(1, 2), beta=0)
        passes.gradient(self, weights, s, y, grad, grads)
        self._add_to_columns(grads.v, weights, grad, 1.0)
        if grads.q is not None:
            self.rows_of(grads.q).baddbmm_(s, k, beta=0, alpha=scale)
        self._add_to_columns(grads.k, s, q, scale)
        if grads.column is not None:
            self.columns_of(grads.column).add_(s.sum(1))
        if grads.column_step is not None:
            sums = self.sum_beyond_band(s, 1, weights)
            self.columns_of(grads.column_step)[:, self.beyond].add_(sums)

    def _add_to_columns(self, grads: Tensor | None, s: Tensor, rows: Tensor, scale: float) -> None:
        """Add ``s^T rows scale``, or write it, with zeros around it, in the first block of
        queries."""
        if grads is None:
            return
        fresh = not self.layout.local and self.block.rows.start == 0
        if fresh:
            grads[self.some, : self.columns.start] = 0
            grads[self.some, self.columns.stop :] = 0
        self.columns_of(grads).baddbmm_(s.transpose(1, 2), rows, beta=not fresh, alpha=scale)

    def rows_of(self, x: Tensor) -> Tensor:
        """The tile's view ``[n, rows, ...]`` of ``[sentences and heads, queries, ...]``."""
        return x[self.some, self.block.rows]

    def columns_of(self, x: Tensor) -> Tensor:
        """The tile's view ``[n, columns, ...]`` of ``[sentences and heads, keys, ...]``."""
        return x[self.some, self.columns]

    def beyond_band(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of ``s`` with keys to the right of a band, and 1 at those keys, 0
        elsewhere."""
        region = s[:, :, self.beyond]
        triangle = self.block.problem.upper_triangle(s.size(1))
        return region, triangle[: region.size(1), : region.size(2)]

    def sum_beyond_band(self, s: Tensor, dim: int, scratch: Tensor) -> Tensor:
        """Sums of ``s`` at keys to the right of a band; ``scratch`` has its shape."""
        region, inside = self.beyond_band(s)
        return torch.mul(region, inside, out=scratch[:, :, : region.size(2)]).sum(dim)


class Passes(ABC):
    """The steps on a block's tiles between the matrix products.

    Attributes:
        dropout: of the normalised weights, or None.
        sums: the scores' gradients, summed over sentences, ``[heads, rows or fewer, diagonals]``;
            None before the first tile.
    """

    def __init__(self, block: Block, dropout: Dropout | None):
        self.block, self.memory, self.dropout = block, block.problem.memory, dropout
        self.sums: Tensor | None = None

    @abstractmethod
    def unnormalized_weights(self, tile: Tile, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Weights before they are divided by their sums.

        Returns:
            These weights after dropout ``[n, rows, columns]``, and their sums before it ``[n, rows,
            1]``. The binary logarithms of the sums of exponentials are written to ``lse``,
            ``[n, rows, 1]``.
        """

    @abstractmethod
    def weights(self, tile: Tile, lse: Tensor) -> Tensor:
        """The weights before dropout, ``[n, rows, columns]``."""

    @abstractmethod
    def buffer(self, tile: Tile) -> Tensor:
        """Uninitialised memory for the weights' gradients, ``[n, rows, columns]``."""

    @abstractmethod
    def gradient(
        self, tile: Tile, weights: Tensor, s: Tensor, y: Tensor, grad: Tensor, grads: Scores
    ) -> None:
        """Turn the gradients ``s`` of the weights after dropout into those of the scores, and the
        weights into those after dropout, in place.

        Also writes the gradients of the band and of the queries' steps to ``grads`` and adds to the
        sums over diagonals.

        Args:
            weights, s: ``[n, rows, columns]``.
            y, grad: the outputs, and their gradients, ``[n, rows, value_dim]``.
        """

    def add_curve_gradient(self, grad: Tensor) -> None:
        """Add the sums over the diagonals to ``[heads or 1, diagonals]``."""
        if self.sums is None:  # there are no sentences
            return
        sums = self.sums.sum(1)
        grad += sums if grad.size(0) == self.block.count else sums.sum(0, keepdim=True)
