"""Composite attention a block of queries at a time, in matrix products.

Neither pass holds the scores of more queries than a block's. Blocks of a causal attention
and of a window leave out the keys that none of their queries sees.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .scores import HIDDEN, Layout, Scores, blind_queries, decompose
from .terms import Terms

QUERIES = 128
MANY_QUERIES = 1024, 256  # of which scaled_dot_product_attention takes larger tiles; causal
SCORES = 2**19  # computed at once: few enough for a core's cache

Part = tuple[slice, slice]  # of the sentences and of the heads


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
    y = _BlockedAttention.apply(layout, dropout_p, seed, *scores)
    if padding_mask is not None:
        blind = blind_queries(padding_mask, q.size(2), layout)
        if blind.any():
            y = y.masked_fill(blind[:, None, :, None], 0)
    return y.to(v.dtype)


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layout: Layout, dropout_p: float, seed: int, *tensors: Tensor | None):
        scores = Scores(*tensors)
        ctx.layout, ctx.dropout = layout, (dropout_p, seed)
        y = scores.v.new_empty(*scores.q.shape[:3], scores.v.size(3))
        dropout = _dropout(dropout_p, seed, y.device)
        many = QUERIES
        if dropout_p == 0 and scores.band is None:
            many = MANY_QUERIES[layout.causal]
        for block in _blocks(scores, layout, many):
            for part in block.parts():
                y[part][:, :, block.rows] = block.output(part, dropout if dropout_p else None)
        ctx.save_for_backward(*tensors, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        *tensors, y = ctx.saved_tensors
        scores = Scores(*tensors)
        grads = Scores(*(x if x is None else x.new_zeros(x.shape) for x in tensors))
        dropout = _dropout(*ctx.dropout, y.device)
        for block in _blocks(scores, ctx.layout, QUERIES):
            for part in block.parts():
                weights = block.weights(part)
                block.add_gradients(part, weights, dropout(weights), y, grad, grads)
            block.add_curve_gradient(grads.curve)
        return None, None, None, *grads


def _dropout(p: float, seed: int, device: torch.device) -> Callable[[Tensor], Tensor | None]:
    """Gives the factors of dropout, the same ones for the same seed and order of calls."""
    if p == 0:
        return lambda weights: None
    generator = torch.Generator(device).manual_seed(seed)
    return lambda weights: (
        torch.empty_like(weights).bernoulli_(1 - p, generator=generator).div_(1 - p)
    )


def _blocks(scores: Scores, layout: Layout, size: int) -> Iterator["_Block"]:
    scratch = {}
    for start in range(0, scores.q.size(2), size):
        yield _Block(scores, layout, slice(start, min(start + size, scores.q.size(2))), scratch)


class _Block:
    """A block of queries with the keys that they see.

    Attributes:
        rows, columns: which queries and which keys.
        shape: how many of them.
        own: the first query's own position among the columns.
        beyond: the columns that some query has beyond the band's right.
        diagonals: where the curve has the block's, from the last query's first key on.
        upside_down: view of the curve's entries, ``[heads or 1, rows, columns]``, with the
            last row first.
        toeplitz: some heads, and the curve's entries for them.
    """

    def __init__(self, scores: Scores, layout: Layout, rows: slice, scratch: dict[str, Tensor]):
        self.scores, self.layout, self.scratch = scores, layout, scratch
        queries, keys = scores.q.size(2), scores.k.size(2)
        start, stop = rows.start, rows.stop
        first, last = 0, keys
        if layout.reach is not None:
            first = max(0, layout.offset + start - layout.reach)
            last = min(keys, layout.offset + stop + layout.reach)
        if layout.causal:
            last = layout.offset + stop
        self.rows, self.columns = rows, slice(first, last)
        self.shape = stop - start, last - first
        self.own = layout.offset + start - first
        self.beyond = slice(self.own + layout.right + 1, last - first)
        begin = first - stop + queries
        self.diagonals = slice(begin, begin + sum(self.shape) - 1)
        self.upside_down = scores.curve[:, self.diagonals].unfold(1, self.shape[1], 1)
        self.toeplitz = slice(0), None
        self.diagonal_sums = None

    def parts(self) -> Iterator[Part]:
        """Sentences and heads whose scores are computed at once."""
        sentences, heads = self.scores.q.shape[:2]
        fitting = max(1, SCORES // (self.shape[0] * self.shape[1]))
        if fitting < heads:
            for h in range(0, heads, fitting):
                for b in range(sentences):
                    yield slice(b, b + 1), slice(h, h + fitting)
        else:
            for b in range(0, sentences, fitting // heads):
                yield slice(b, b + fitting // heads), slice(0, heads)

    def curves(self, heads: slice) -> Tensor:
        """The curve's entries for some heads, ``[heads, rows, columns]``."""
        if self.toeplitz[0] != heads:
            mine = self.upside_down if self.upside_down.size(0) == 1 else self.upside_down[heads]
            self.toeplitz = heads, mine.flip(1)
        count = len(range(self.scores.q.size(1))[heads])
        return self.toeplitz[1].expand(count, -1, -1)

    def weights(self, part: Part) -> Tensor:
        """Normalised, ``[n, rows, columns]``, n counting the part's heads."""
        scores = self.scores
        q, k = self._rows(scores.q, part), self._columns(scores.k, part)
        framed, s = self._framed("weights", q)
        curves = self.curves(part[1])
        s.unflatten(0, (-1, curves.size(0))).copy_(curves)
        s.baddbmm_(q, k.transpose(1, 2), alpha=self.layout.scale)
        if scores.column is not None:
            s.add_(self._columns(scores.column, part).unsqueeze(1))
        if scores.band is not None:
            self._along_band(framed).add_(self._rows(scores.band, part))
            self._fill_frame(framed, HIDDEN)
        if scores.row_step is not None:
            region, inside = self._beyond_band(s)
            region.addcmul_(inside, self._rows(scores.row_step, part).unsqueeze(2))
        if scores.column_step is not None:
            region, inside = self._beyond_band(s)
            step = self._columns(scores.column_step, part)[:, self.beyond]
            region.addcmul_(inside, step.unsqueeze(1))
        torch.softmax(framed, dim=-1, out=framed)
        return s

    def output(self, part: Part, dropout: Callable[[Tensor], Tensor] | None) -> Tensor:
        """The weighted sums of values, ``[sentences, heads, rows, value_dim]``."""
        scores = self.scores
        if dropout is None and scores.band is None:
            mask = self.curves(part[1]).unsqueeze(0)
            if scores.column is not None:
                mask = mask + scores.column[part][:, :, None, self.columns]
            q, (k, v) = scores.q[part][:, :, self.rows], (scores.k[part], scores.v[part])
            k, v = k[:, :, self.columns], v[:, :, self.columns]
            return F.scaled_dot_product_attention(q, k, v, mask, scale=self.layout.scale)
        weights = self.weights(part)
        weights = weights if dropout is None else weights.mul_(dropout(weights))
        y = torch.bmm(weights, self._columns(scores.v, part))
        return y.unflatten(0, (-1, self.curves(part[1]).size(0)))

    def add_gradients(
        self,
        part: Part,
        weights: Tensor,
        kept: Tensor | None,
        y: Tensor,
        grad: Tensor,
        grads: Scores,
    ) -> None:
        """Add what the block contributes to all gradients but the curve's."""
        scores, scale = self.scores, self.layout.scale
        q, k = self._rows(scores.q, part), self._columns(scores.k, part)
        grad, v = self._rows(grad, part), self._columns(scores.v, part)
        dropped = weights if kept is None else weights * kept
        self._columns(grads.v, part).baddbmm_(dropped.transpose(1, 2), grad)
        framed, s = self._framed("gradients", grad)
        s.baddbmm_(grad, v.transpose(1, 2), beta=0)
        s = s if kept is None else s.mul_(kept)
        mean = (grad * self._rows(y, part)).sum(-1, keepdim=True)
        s.sub_(mean).mul_(weights)
        self._rows(grads.q, part).baddbmm_(s, k, beta=0, alpha=scale)
        self._columns(grads.k, part).baddbmm_(s.transpose(1, 2), q, alpha=scale)
        if scores.column_step is not None or scores.column is not None:
            self._columns(grads.column, part).add_(s.sum(1))
        if scores.band is not None:
            self._fill_frame(framed, 0)
            self._rows(grads.band, part).copy_(self._along_band(framed))
        if scores.row_step is not None or scores.column_step is not None:
            region, inside = self._beyond_band(s)
            region = region * inside
            if scores.row_step is not None:
                self._rows(grads.row_step, part).copy_(region.sum(2))
            if scores.column_step is not None:
                self._columns(grads.column_step, part)[:, self.beyond].add_(region.sum(1))
        self._add_to_diagonals(part, s)

    def _add_to_diagonals(self, part: Part, s: Tensor) -> None:
        """Sum scores' gradients over the sentences, in rows with room for a skewed view."""
        rows, columns = self.shape
        heads = self.scores.q.size(1)
        width = rows + columns - 1
        if self.diagonal_sums is None:
            self.diagonal_sums = s.new_zeros(heads, rows - 1 + rows * width)
        by_rows = self.diagonal_sums[:, rows - 1 :].view(heads, rows, width)
        by_rows = by_rows[part[1], :, :columns]
        s = s.unflatten(0, (-1, by_rows.size(0)))
        by_rows += s[0] if s.size(0) == 1 else s.sum(0)

    def add_curve_gradient(self, grad: Tensor) -> None:
        """Add the sums over the diagonals."""
        rows, columns = self.shape
        width = rows + columns - 1
        heads, length = self.diagonal_sums.shape
        sums = self.diagonal_sums.as_strided((heads, rows, width), (length, width + 1, 1)).sum(1)
        grad[:, self.diagonals] += sums if grad.size(0) == heads else sums.sum(0, keepdim=True)

    def _rows(self, x: Tensor, part: Part) -> Tensor:
        """``[batch, heads, queries, ...]`` -> the part's and the block's, ``[n, rows, ...]``;
        a view where ``x`` is contiguous."""
        return x[part][:, :, self.rows].flatten(0, 1)

    def _columns(self, x: Tensor, part: Part) -> Tensor:
        """Likewise of ``[batch, heads, keys, ...]``."""
        return x[part][:, :, self.columns].flatten(0, 1)

    def _framed(self, name: str, like: Tensor) -> tuple[Tensor, Tensor]:
        """``[n, rows, columns]`` inside a frame of columns, into which the band of the
        first and the last queries reaches; with the frame, and without. Its memory is
        that of the last one of this name."""
        left, right = self.layout.left, self.layout.right
        shape = like.size(0), self.shape[0], left + self.shape[1] + right
        if name not in self.scratch or self.scratch[name].numel() < math.prod(shape):
            self.scratch[name] = like.new_empty(math.prod(shape))
        framed = self.scratch[name][: math.prod(shape)].view(shape)
        return framed, framed[:, :, left : left + self.shape[1]]

    def _fill_frame(self, framed: Tensor, value: float) -> None:
        framed[:, :, : self.layout.left] = value
        framed[:, :, self.layout.left + self.shape[1] :] = value

    def _along_band(self, framed: Tensor) -> Tensor:
        """View of the diagonals of the band, ``[n, rows, taps]``."""
        taps = self.layout.left + 1 + self.layout.right
        strides = (framed.stride(0), framed.stride(1) + 1, 1)
        return framed.as_strided((*framed.shape[:2], taps), strides, self.own)

    def _beyond_band(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The columns where keys beyond the band's right begin, and 1 where they are so."""
        region = s[:, :, self.beyond]
        return region, torch.ones_like(region[0]).triu()
