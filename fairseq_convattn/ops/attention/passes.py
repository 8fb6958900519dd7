"""What composite attention computes between its matrix products, in PyTorch."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .scores import HIDDEN, Scores

if TYPE_CHECKING:
    from .blocked import Block, Tile

LOG2_E = math.log2(math.e)


class InPyTorch:
    """The passes over a block's tiles. Scores are to base 2, as MKL's exp is many times slower
    near zero.

    Attributes:
        curves: the curve's entries, ``[heads or 1, rows, columns]``.
        sums: of the scores' gradients over the sentences, ``[heads, rows, diagonals]``.
    """

    def __init__(self, block: "Block"):
        self.block, self.sums = block, None
        curve = block.curve(block.scores.curve).unsqueeze(1)
        curves = block.memory("curves", (curve.size(0), *self._by_diagonals()))
        self.curves = self._skewed(curves.copy_(curve * LOG2_E))

    def powers(self, tile: "Tile", log_sums: Tensor) -> tuple[Tensor, Tensor]:
        """Weights before they are divided by their sums, ``[n, rows, columns]``, and the sums,
        ``[n, rows, 1]``; writes ``log_sums``, likewise."""
        s = self._logits(tile, None)
        largest = s.amax(-1, keepdim=True).clamp_(min=HIDDEN / 2)
        sums = s.sub_(largest).exp2_().sum(-1, keepdim=True)
        sums.clamp_(min=0.5)  # below only where a query sees nothing
        log_sums.copy_(largest.add_(sums.log2()))
        return s, sums

    def weights(self, tile: "Tile", log_sums: Tensor) -> Tensor:
        """The weights, ``[n, rows, columns]``."""
        return self._logits(tile, log_sums).exp2_()

    def room(self, tile: "Tile") -> Tensor:
        """For the weights' gradients, ``[n, rows, columns]``."""
        self._frame, inside = self._framed(tile, "gradients")
        return inside

    def gradient(
        self, tile: "Tile", weights: Tensor, s: Tensor, less: Tensor, grads: Scores
    ) -> None:
        """Turn the weights' gradients ``s``, minus ``less``, into those of the scores, and add
        these to the gradients by diagonals; ``weights`` may be overwritten."""
        s.sub_(less).mul_(weights)
        if grads.band is not None:
            self._clear_frame(tile)
            tile.rows_of(grads.band).copy_(self._along_band(tile, self._frame))
        if grads.row_step is not None or grads.column_step is not None:
            region, inside = self._beyond_band(tile, s)
            region = torch.mul(region, inside, out=weights[:, :, : inside.size(1)])
            if grads.row_step is not None:
                tile.rows_of(grads.row_step).copy_(region.sum(2))
            if grads.column_step is not None:
                tile.columns_of(grads.column_step)[:, tile.beyond].add_(region.sum(1))
        if grads.curve is not None:
            self._add_to_diagonals(tile, s)

    def add_curve_gradient(self, grad: Tensor) -> None:
        """Add the sums over the diagonals to ``[heads or 1, diagonals]``."""
        sums = self.sums.sum(1)
        grad += sums if grad.size(0) == self.block.count else sums.sum(0, keepdim=True)

    def _add_to_diagonals(self, tile: "Tile", s: Tensor) -> None:
        count = self.block.count
        if self.sums is None:
            self.sums = self.block.memory("sums", (count, *self._by_diagonals())).zero_()
        first = tile.columns.start - self.block.columns.start
        sums = self._skewed(self.sums)[:, :, first : first + s.size(2)]
        sums += s if s.size(0) == count else s.unflatten(0, (-1, count)).sum(0)

    def _by_diagonals(self) -> tuple[int, int]:
        return self.block.shape[0], sum(self.block.shape) - 1

    def _skewed(self, x: Tensor) -> Tensor:
        """View of ``[heads, rows, diagonals]`` by columns, ``[heads, rows, columns]``."""
        rows, columns = self.block.shape
        return x.as_strided((x.size(0), rows, columns), (x.stride(0), x.stride(1) - 1, 1), rows - 1)

    def _logits(self, tile: "Tile", less: Tensor | None) -> Tensor:
        """``[n, rows, columns]``, minus ``less``, ``[n, rows, 1]``."""
        scores = tile.scores
        framed, s = self._framed(tile, "scores")
        by_sentence = s.unflatten(0, (-1, self.block.count))
        first = tile.columns.start - self.block.columns.start
        curves = self.curves[:, :, first : first + tile.shape[2]]
        if tile.adds_column:
            column = tile.columns_of(scores.column).unflatten(0, (-1, self.block.count))
            curves = torch.add(curves, column.unsqueeze(2), alpha=LOG2_E, out=by_sentence)
        if less is not None:
            torch.sub(curves, less.unflatten(0, (-1, self.block.count)), out=by_sentence)
        elif not tile.adds_column:
            by_sentence.copy_(curves)
        q, k = tile.rows_of(scores.q), tile.columns_of(scores.k)
        s.baddbmm_(q, k.transpose(1, 2), alpha=tile.layout.scale * LOG2_E)
        if scores.band is not None:
            self._along_band(tile, framed).add_(tile.rows_of(scores.band), alpha=LOG2_E)
        if scores.row_step is not None:
            region, inside = self._beyond_band(tile, s)
            region.addcmul_(inside, tile.rows_of(scores.row_step).unsqueeze(2), value=LOG2_E)
        if scores.column_step is not None:
            region, inside = self._beyond_band(tile, s)
            step = tile.columns_of(scores.column_step)[:, tile.beyond]
            region.addcmul_(inside, step.unsqueeze(1), value=LOG2_E)
        return s

    def _framed(self, tile: "Tile", name: str) -> tuple[Tensor, Tensor]:
        """``[n, rows, columns]`` inside a frame of columns, into which the band of the
        first and the last queries reaches; with the frame, and without."""
        n, rows, columns = tile.shape
        left, right = tile.layout.left, tile.layout.right
        framed = self.block.memory(name, (n, rows, left + columns + right))
        return framed, framed[:, :, left : left + columns]

    def _clear_frame(self, tile: "Tile") -> None:
        self._frame[:, :, : tile.layout.left] = 0
        self._frame[:, :, tile.layout.left + tile.shape[2] :] = 0

    def _along_band(self, tile: "Tile", framed: Tensor) -> Tensor:
        """View of the diagonals of the band, ``[n, rows, taps]``."""
        taps = tile.layout.left + 1 + tile.layout.right
        strides = (framed.stride(0), framed.stride(1) + 1, 1)
        return framed.as_strided((*framed.shape[:2], taps), strides, tile.own)

    def _beyond_band(self, tile: "Tile", s: Tensor) -> tuple[Tensor, Tensor]:
        """The columns where keys beyond the band's right begin, and 1 where they are so."""
        region, scratch = s[:, :, tile.beyond], self.block.scratch
        if "beyond" not in scratch or (scratch["beyond"].size(0) < s.size(1)):
            keys = tile.scores.k.size(1)
            scratch["beyond"] = s.new_ones(s.size(1), keys).triu_()
        return region, scratch["beyond"][: region.size(1), : region.size(2)]
