"""Composite attention by the Triton kernels of ``triton_tiles``."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import triton_tensors
from ..triton_tensors import DEVICES, DTYPES, Strided, cdiv, launch, power_of_2, precision
from .dropout import Dropout
from .operators import register
from .scores import Layout, Scores
from .terms import Options, Terms
from .triton_scores import MARGIN, Added
from .triton_tiles import VARYING, backward_by_keys, backward_by_queries, forward_by_queries

WIDEST = 256


class Blocks(NamedTuple):
    """Sizes of a program's blocks of queries and keys, and how Triton compiles it.

    The backward pass by queries needs at most twice as many queries as keys.
    """

    queries: int
    keys: int
    warps: int
    stages: int


def unfit(q: Tensor, v: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if max(q.size(3), v.size(3)) > WIDEST:
        return f"takes heads of at most {WIDEST}, not {max(q.size(3), v.size(3))}"
    return triton_tensors.unfit(q, v)


def attend(q: Tensor, k: Tensor, v: Tensor, terms: Terms, options: Options) -> Tensor:
    """Same contract as :func:`reference.attend`; no second derivatives.

    Half precision is multiplied as such, and sums are float32. Products of float32 follow
    ``torch.backends.cuda.matmul.fp32_precision``.
    """
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return _attend(q.to(dtype), k.to(dtype), v.to(dtype), terms, options).to(v.dtype)


def _forward(scores: Scores, layout: Layout, dropout: Dropout | None) -> tuple[Tensor, Tensor]:
    return _Kernels(scores, layout, dropout).forward()


def _backward(
    grad: Tensor,
    y: Tensor,
    lse: Tensor,
    scores: Scores,
    layout: Layout,
    dropout: Dropout | None,
    wanted: Sequence[bool],
) -> Scores:
    return _Kernels(scores, layout, dropout).backward(y, lse, grad, Scores(*wanted))


_attend = register("attend_triton", _forward, _backward, DTYPES, DEVICES, MARGIN.value)


class _Kernels:
    """Launches the kernels on given scores."""

    def __init__(self, scores: Scores, layout: Layout, dropout: Dropout | None):
        self.scores = scores
        self.shape = scores.q.shape[:3]
        self.layout = layout
        self.keys = scores.k.size(2)
        self.width, self.values = scores.q.size(3), scores.v.size(3)
        self.kind = max(self.width, self.values), scores.v.dtype, scores.band is not None
        self.arguments = {
            "q": _by_time(scores.q),
            "k": _by_time(scores.k),
            "v": _by_time(scores.v),
            "added": _added(scores),
            "curve_h": scores.curve.size(1) if scores.curve.size(0) > 1 else 0,
            "heads": self.shape[1],
            "queries": self.shape[2],
            "keys": self.keys,
            "left": layout.left,
            "right": layout.right,
            "reach": self.keys if layout.reach is None else layout.reach,
            "before": layout.before,
            "after": layout.after,
            "scale": layout.scale,
            "threshold": dropout.threshold if dropout else 0,
            "rescale": dropout.rescale if dropout else 1.0,
            "seed": dropout.seed if dropout else None,
            "FLAT": scores.band is not None and layout.before - MARGIN.value < self.keys,
            "CAUSAL": layout.causal,
            "WIDTH": self.width,
            "WIDTH_PADDED": _padded(self.width),
            "VALUES": self.values,
            "VALUES_PADDED": _padded(self.values),
            "PRECISION": precision(scores.v.device),
        }

    def forward(self) -> tuple[Tensor, Tensor]:
        """Outputs, and the logarithms of the sums of exponentials, 0 where nothing is seen."""
        y = self.scores.v.new_empty(*self.shape, self.values)
        lse = torch.empty(self.shape, dtype=torch.float32, device=y.device)
        self._launch(forward_by_queries, _forward_blocks, "queries", y=_by_time(y), lse=lse)
        return y, lse

    def backward(self, y: Tensor, lse: Tensor, grad: Tensor, wanted: Scores) -> Scores:
        """Gradients, None where not ``wanted``."""
        scores = self.scores
        blocks = _blocks_by_queries(*self.kind)
        delta = torch.empty_like(lse)
        found = Scores(
            *(
                x.new_empty(x.shape) if want or name in "qkv" else None
                for name, x, want in zip(Scores._fields, scores, wanted, strict=True)
            )
        )
        if wanted.band:
            found.band.zero_()  # the kernel leaves out taps beyond the first and last key
        diagonals = None
        if wanted.curve:
            rows = cdiv(self.shape[2], blocks.queries)
            shape = (*self.shape[:2], rows, sum(self._reached()) + 1)
            diagonals = torch.zeros(shape, dtype=torch.float32, device=y.device)
        shared = {"grad": _by_time(grad), "lse": lse, "delta": delta, "added_grad": _added(found)}
        self._launch(
            backward_by_queries,
            _blocks_by_queries,
            "queries",
            **shared,
            y=_by_time(y),
            q_grad=_by_time(found.q),
            diagonals=diagonals,
            distances=0 if diagonals is None else diagonals.size(3),
        )
        self._launch(
            backward_by_keys,
            _blocks_by_keys,
            "keys",
            **shared,
            k_grad=_by_time(found.k),
            v_grad=_by_time(found.v),
        )
        curve = None
        if wanted.curve:
            curve = self._along_curve(diagonals)
        wanted_by_rows = (x if want else None for x, want in zip(found[:3], wanted, strict=False))
        return found._replace(curve=curve, **dict(zip("qkv", wanted_by_rows, strict=True)))

    def _reached(self) -> tuple[int, int]:
        """How far distances go on the curve from 0, or one further."""
        before, after = self.layout.before, self.layout.after
        return min(before, self.keys), 0 if self.layout.causal else min(after, self.shape[2])

    def _along_curve(self, diagonals: Tensor) -> Tensor:
        """Gradient of the curve, from the sums of ``backward_by_queries``."""
        sums = diagonals.sum((0, 2) if self.scores.curve.size(0) > 1 else (0, 1, 2))
        before, after = self._reached()
        missing = self.layout.before - before, self.layout.after - after
        return F.pad(sums.view_as(self.scores.curve[:, : sums.size(-1)]), missing)

    def _launch(self, kernel, choose_blocks, side: str, **arguments) -> None:
        """One program per block of ``side`` and head of a sentence."""
        blocks = choose_blocks(*self.kind)
        assert blocks.queries + blocks.keys <= MARGIN.value, blocks
        length, block = {
            "queries": (self.shape[2], blocks.queries),
            "keys": (self.keys, blocks.keys),
        }[side]
        programs = cdiv(length, block) * self.shape[0] * self.shape[1]
        sizes = {"BLOCK_QUERIES": blocks.queries, "BLOCK_KEYS": blocks.keys}
        given = {**self.arguments, **arguments, **sizes}
        options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
        launch(kernel, programs, given, VARYING, self.scores.v, **options)


def _forward_blocks(width: int, dtype: torch.dtype, band: bool) -> Blocks:
    if dtype == torch.float32:
        return Blocks(64, 32, 4, 2) if width <= 64 else Blocks(32, 32, 4, 1)
    if width <= 64:
        return Blocks(64, 64, 4, 3)
    return Blocks(64, 64, 8, 1) if width <= 128 else Blocks(64, 32, 4, 1)


def _blocks_by_queries(width: int, dtype: torch.dtype, band: bool) -> Blocks:
    if dtype != torch.float32 and width <= 64:
        return Blocks(64, 32, 4, 4) if band else Blocks(64, 64, 4, 3)
    return _blocks_by_keys(width, dtype, band)


def _blocks_by_keys(width: int, dtype: torch.dtype, band: bool) -> Blocks:
    if dtype == torch.float32:
        return Blocks(32, 32, 4, 1) if width <= 128 else Blocks(16, 16, 4, 1)
    if width <= 64:
        return Blocks(64, 64, 4, 3)
    return Blocks(64, 64, 8, 1) if width <= 128 else Blocks(32, 32, 4, 1)


def _padded(width: int) -> int:
    """What tiles can be wide."""
    return max(16, power_of_2(width))


def _by_time(x: Tensor) -> Strided:
    """``[batch, heads, time, width]`` as kernels take it, with a row's elements side by side."""
    x = x if x.stride(-1) == 1 or x.size(-1) <= 1 else x.contiguous()
    of_batch, of_head, of_time, _ = x.stride()
    return Strided(x, of_time, of_batch, of_head, 1)


def _added(scores: Scores) -> Added:
    return Added(*(getattr(scores, name) for name in Added._fields))
