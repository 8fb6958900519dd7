"""The steps of composite attention between its matrix products, in PyTorch."""

import functools

import torch
from torch import Tensor

from .dropout import Dropout
from .scores import HIDDEN, Scores
from .tiles import LOG2_E, Block, Passes, Tile, register_passes


class InPyTorch(Passes):
    """As :class:`Passes`, on any device.

    Attributes:
        curves: the curve's entries, ``[heads or 1, rows, columns]``.
    """

    def __init__(self, block: Block, dropout: Dropout | None):
        super().__init__(block, dropout)
        curve = block.curve(block.problem.scores.curve).unsqueeze(1)
        curves = self.memory("curves", (curve.size(0), *self._by_diagonals()))
        self.curves = self._skewed(curves.copy_(curve * LOG2_E))

    def unnormalized_weights(self, tile: Tile, lse: Tensor) -> tuple[Tensor, Tensor]:
        s = self._logits(tile)
        largest = s.amax(-1, keepdim=True).clamp_(min=HIDDEN / 2)
        sums = s.sub_(largest).exp2_().sum(-1, keepdim=True)
        sums.clamp_(min=0.5)  # below only where a query sees nothing
        lse.copy_(largest.add_(sums.log2()))
        return (s if self.dropout is None else s.mul_(self._factors(tile))), sums

    def weights(self, tile: Tile, lse: Tensor) -> Tensor:
        return self._logits(tile).sub_(lse).exp2_()

    def _factors(self, tile: Tile) -> Tensor:
        """Dropout's factors of the weights, ``[n, rows, columns]``."""
        n, rows, _ = tile.shape
        count = functools.partial(torch.arange, device=tile.scores.q.device)
        heads = count(n).unsqueeze(1) * tile.scores.q.size(1)
        columns = count(tile.columns.start, tile.columns.stop)
        row = tile.first_row + heads + count(rows)
        return self.dropout.factors(row, columns, tile.scores.curve.dtype)

    def buffer(self, tile: Tile) -> Tensor:
        self._frame, inside = self._framed(tile, "gradients")
        return inside

    def gradient(
        self, tile: Tile, weights: Tensor, s: Tensor, y: Tensor, grad: Tensor, grads: Scores
    ) -> None:
        delta = (grad * y).sum(-1, keepdim=True)
        if self.dropout is None:
            s.sub_(delta).mul_(weights)
        else:
            factors = self._factors(tile)
            s.mul_(factors).sub_(delta).mul_(weights)
            weights.mul_(factors)
        if grads.band is not None:
            self._clear_frame(tile)
            tile.rows_of(grads.band).copy_(self._along_band(tile, self._frame))
        if grads.row_step is not None:
            scratch = self.memory("beyond the band", tile.shape)
            tile.rows_of(grads.row_step).copy_(tile.sum_beyond_band(s, 2, scratch))
        if grads.curve is not None:
            self._add_to_diagonals(tile, s)

    def _add_to_diagonals(self, tile: Tile, s: Tensor) -> None:
        count = self.block.count
        if self.sums is None:
            self.sums = self.memory("sums", (count, *self._by_diagonals())).zero_()
        sums = self._skewed(self.sums)[:, :, tile.first : tile.first + s.size(2)]
        sums += s if s.size(0) == count else s.unflatten(0, (-1, count)).sum(0)

    def _by_diagonals(self) -> tuple[int, int]:
        return self.block.shape[0], sum(self.block.shape) - 1

    def _skewed(self, x: Tensor) -> Tensor:
        """View of ``[heads, rows, diagonals]`` by columns, ``[heads, rows, columns]``."""
        rows, columns = self.block.shape
        return x.as_strided((x.size(0), rows, columns), (x.stride(0), x.stride(1) - 1, 1), rows - 1)

    def _logits(self, tile: Tile) -> Tensor:
        """Scores ``[n, rows, columns]`` to base 2."""
        scores = tile.scores
        framed, s = self._framed(tile, "scores")
        by_sentence = s.unflatten(0, (-1, self.block.count))
        curves = self.curves[:, :, tile.first : tile.first + tile.shape[2]]
        if tile.adds_column:
            column = tile.columns_of(scores.column).unflatten(0, (-1, self.block.count))
            torch.add(curves, column.unsqueeze(2), alpha=LOG2_E, out=by_sentence)
        else:
            by_sentence.copy_(curves)
        q, k = tile.rows_of(scores.q), tile.columns_of(scores.k)
        s.baddbmm_(q, k.transpose(1, 2), alpha=tile.layout.scale * LOG2_E)
        if scores.band is not None:
            self._along_band(tile, framed).add_(tile.rows_of(scores.band), alpha=LOG2_E)
        if scores.row_step is not None:
            region, inside = tile.beyond_band(s)
            region.addcmul_(inside, tile.rows_of(scores.row_step).unsqueeze(2), value=LOG2_E)
        if scores.column_step is not None:
            region, inside = tile.beyond_band(s)
            step = tile.columns_of(scores.column_step)[:, tile.beyond]
            region.addcmul_(inside, step.unsqueeze(1), value=LOG2_E)
        return s

    def _framed(self, tile: Tile, name: str) -> tuple[Tensor, Tensor]:
        """``[n, rows, columns]`` inside a frame of columns, into which the band of the
        first and the last queries reaches; with the frame, and without."""
        n, rows, columns = tile.shape
        left, right = tile.layout.left, tile.layout.right
        framed = self.memory(name, (n, rows, left + columns + right))
        return framed, framed[:, :, left : left + columns]

    def _clear_frame(self, tile: Tile) -> None:
        self._frame[:, :, : tile.layout.left] = 0
        self._frame[:, :, tile.layout.left + tile.shape[2] :] = 0

    def _along_band(self, tile: Tile, framed: Tensor) -> Tensor:
        """View of the diagonals of the band, ``[n, rows, taps]``."""
        taps = tile.layout.left + 1 + tile.layout.right
        strides = (framed.stride(0), framed.stride(1) + 1, 1)
        return framed.as_strided((*framed.shape[:2], taps), strides, tile.own)


attend = register_passes(
    "attend_tiled", InPyTorch, (torch.float32, torch.float64), "CompositeExplicitAutograd"
)
