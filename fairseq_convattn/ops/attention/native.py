"""The steps of composite attention between its matrix products, by the compiled kernels of
``native/attention.c``: each pass reads and writes a tile of scores once."""

import ctypes

import torch
from torch import Tensor

from .. import native
from ..implementation import unfit_for_operators
from . import native_bfloat16
from .dropout import Dropout
from .native_bfloat16 import FLOAT_BYTES, Part
from .scores import HIDDEN, Scores
from .terms import Options, Terms
from .tiles import LOG2_E, Block, Passes, Tile, register_passes

UNNORMALIZED_WEIGHTS, WEIGHTS, GRADIENT = range(3)


class _Scores(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("sentences", "heads", "rows", "columns")),
        *((name, ctypes.c_int64) for name in ("left", "right", "own")),
        ("lowest", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("first_row", "queries", "first_column")),
        *((name, ctypes.c_uint32) for name in ("low_seed", "high_seed")),
        ("keep", ctypes.c_double),
        *((name, Part) for name in ("s", "curve", "column", "band", "row_step", "column_step")),
        *((name, Part) for name in ("lse", "sums", "gradient")),
        *((name, Part) for name in ("grad_band", "grad_row_step", "diagonals")),
    ]


def unfit(q: Tensor, v: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if q.device.type != "cpu":
        return "is for tensors on the CPU"
    if torch.float64 in (q.dtype, v.dtype):
        return "computes in float32: give float32 or half precision"
    return unfit_for_operators() if native.is_built() else native.NOT_BUILT


class Compiled(Passes):
    """As :class:`Passes`, with a row of ``sums`` for a chunk of queries.

    Attributes:
        curve: ``[heads or 1, diagonals]``.
    """

    def __init__(self, block: Block, dropout: Dropout | None):
        super().__init__(block, dropout)
        self.curve = block.curve(block.problem.scores.curve) * LOG2_E

    def unnormalized_weights(self, tile: Tile, lse: Tensor) -> tuple[Tensor, Tensor]:
        s = self._products(tile)
        sums = self.memory("row sums", (*s.shape[:2], 1))
        self._run(UNNORMALIZED_WEIGHTS, self._scores(tile, s, lse=_rows(lse), sums=_rows(sums)))
        return s, sums

    def weights(self, tile: Tile, lse: Tensor) -> Tensor:
        s = self._products(tile)
        self._run(WEIGHTS, self._scores(tile, s, lse=_rows(lse)))
        return s

    def buffer(self, tile: Tile) -> Tensor:
        return self.memory("gradients", tile.shape)

    def gradient(
        self, tile: Tile, weights: Tensor, s: Tensor, y: Tensor, grad: Tensor, grads: Scores
    ) -> None:
        more = {"gradient": _rows(s)}
        for name in ("band", "row_step"):
            if getattr(grads, name) is not None:
                more[f"grad_{name}"] = _rows(tile.rows_of(getattr(grads, name)))
        if grads.curve is not None:
            more["diagonals"] = self._diagonals(tile)
        self._run(GRADIENT, self._scores(tile, weights, **more))

    def _products(self, tile: Tile) -> Tensor:
        q, k = tile.rows_of(tile.scores.q), tile.columns_of(tile.scores.k)
        s = self.memory("scores", tile.shape)
        return s.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=tile.layout.scale * LOG2_E)

    def _scores(self, tile: Tile, s: Tensor, **parts: Part) -> _Scores:
        scores, layout = tile.scores, tile.layout
        first = self.block.shape[0] - 1 + tile.first
        shared = self.curve.size(0) == 1
        low, high = self.dropout.seeds if self.dropout else (0, 0)
        for name in ("band", "row_step"):
            if getattr(scores, name) is not None:
                parts[name] = _rows(tile.rows_of(getattr(scores, name)))
        for name in ("column", "column_step"):
            if getattr(scores, name) is not None and (tile.adds_column or name != "column"):
                parts[name] = _columns(tile.columns_of(getattr(scores, name)))
        return _Scores(
            sentences=s.size(0) // self.block.count,
            heads=self.block.count,
            rows=s.size(1),
            columns=s.size(2),
            left=layout.left,
            right=layout.right,
            own=tile.own,
            lowest=HIDDEN / 2,
            first_row=tile.first_row,
            queries=scores.q.size(1),
            first_column=tile.columns.start,
            low_seed=low,
            high_seed=high,
            keep=1 - self.dropout.p if self.dropout else 1,
            s=_rows(s),
            curve=Part(_address(self.curve, first), 0 if shared else self.curve.stride(0), 0),
            **parts,
        )

    def _diagonals(self, tile: Tile) -> Part:
        """The sums over diagonals, for each chunk of queries, so that no two threads share one."""
        rows, columns = self.block.shape
        if self.sums is None:
            chunks = -(-rows // native.library.convattn_chunk_of_attention())
            shape = self.block.count, chunks, rows + columns - 1
            self.sums = self.memory("sums", shape).zero_()
        return Part(_address(self.sums, rows - 1 + tile.first), *self.sums.stride()[:2])

    def _run(self, which: int, scores: _Scores) -> None:
        threads = torch.get_num_threads()
        native.library.convattn_attend(ctypes.byref(scores), which, threads, native.run_in_parallel)


def _address(x: Tensor, first: int) -> int:
    return x.data_ptr() + FLOAT_BYTES * first


def _rows(x: Tensor) -> Part:
    """``[n, rows, ...]``."""
    return Part(x.data_ptr(), x.stride(0), x.stride(1))


def _columns(x: Tensor) -> Part:
    """``[n, columns]``."""
    return Part(x.data_ptr(), x.stride(0), 0)


_attend_in_float32 = register_passes("attend_native", Compiled, (torch.float32,), "CPU")


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, options: Options) -> Tensor:
    """Same contract as :func:`reference.attend`; no second derivatives. With AMX, bfloat16 is
    multiplied as such; then weights and gradients are rounded to it for their products, too."""
    in_bfloat16 = native_bfloat16.fits(q, k, v)
    run = native_bfloat16.attend if in_bfloat16 else _attend_in_float32
    return run(q, k, v, terms, options)
