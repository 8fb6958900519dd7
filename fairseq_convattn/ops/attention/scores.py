"""Composite attention's scores in a form that needs no score tensor of all queries.

The queries are the last positions of the keys. Query t stands at key position ``offset + t``;
with r = j - offset - t,

    S_tj = scale q_t . k_j + curve[r] + column_j
         + band_t[r] + [r > right] (row_step_t + column_step_j)

All that does not depend on content is ``curve``, one Toeplitz matrix per head. Query and key
terms are a ``band`` of taps along the diagonal. The tap that serves all earlier keys is the
same for a whole row, which softmax ignores, or for a whole column; the taps are counted
from it, and the steps lead to the one that serves all later keys.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .terms import Options, Terms, near, relative_bias, wide

HIDDEN = -1e30  # the score of what cannot be seen: finite, so that no row becomes NaN


class Layout(NamedTuple):
    """The positions of keys relative to queries.

    Attributes:
        left, right: taps of the band before and after a query's own position.
        reach: how far queries see, None for everywhere.
        causal: whether they see nothing after themselves.
        scale: of the product of queries and keys.
        before, after: how far the curve goes, from 0; its ends serve all that lies beyond. None:
            as far as the keys.
    """

    left: int
    right: int
    reach: int | None
    causal: bool
    scale: float
    before: int | None = None
    after: int | None = None

    @property
    def local(self) -> bool:
        """Whether some key is hidden from some queries by position, apart from padding."""
        return self.causal or self.reach is not None

    def extent(self, queries: int, keys: int) -> tuple[int, int]:
        """How far the curve goes, from 0."""
        if self.before is None:
            return keys - 1, queries - 1
        return self.before, self.after


class Scores(NamedTuple):
    """What the scores are computed from; float32 at least. All but q, k and v are contiguous.

    Attributes:
        q: ``[batch, heads, queries, width]``; the width may be zero.
        k: ``[batch, heads, keys, width]``.
        v: ``[batch, heads, keys, value_dim]``.
        curve: ``[heads or 1, before + 1 + after]``, for r from ``-before`` to ``after``.
        column: None, or ``[batch, heads, keys]``.
        band: None, or ``[batch, heads, queries, left + 1 + right]``; taps beyond the first or
            last key have no meaning.
        row_step, column_step: None, or ``[batch, heads, queries]``, ``[batch, heads, keys]``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    curve: Tensor
    column: Tensor | None
    band: Tensor | None
    row_step: Tensor | None
    column_step: Tensor | None

    @property
    def offset(self) -> int:
        """The first query's position among the keys."""
        return self.k.size(-2) - self.q.size(-2)


def decompose(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, options: Options, margin: int | None = None
) -> tuple[Scores, Layout]:
    """The arguments of :func:`composite_attention` in the form above.

    Args:
        margin: by how much the curve goes on, as it is there, beyond the distances at which it
            changes; None: it goes as far as the keys.
    """
    causal, beyond, span, padding_mask, _, scale = options
    past = k.size(2) - q.size(2)
    left = cut = 0
    if "query" in terms or "key" in terms:
        left = min(span, k.size(2) - 1)
        cut = span - left
    right = 0 if causal else left
    more = -(left + 1 + right) % 8 if left and _in_halves(q) else 0
    left += more
    reach = min(span, k.size(2)) if beyond == "mask" else None
    layout = Layout(left, right, reach, causal, scale)
    if margin is not None:
        close = near(terms, options, k.size(2))
        before = k.size(2) if close is None else max(close, left + 1)
        after = q.size(2) if close is None else max(close, right + 1)
        after = 1 if causal else after
        layout = layout._replace(before=before + margin, after=after + margin)

    column = band = row_step = column_step = None
    if "query" in terms:
        table, _, step = _from_edge(wide(terms["query"]) * scale, causal, beyond, cut, more)
        band, row_step = _products(q, table), _product(q, step)
    if "key" in terms:
        table = wide(terms["key"]).flip(1) * scale
        table, edge, step = _from_edge(table, causal, beyond, cut, more)
        column, column_step = _product(k, edge), _product(k, step)
        first = max(0, past - left)  # of the keys that a band reaches
        along_keys = F.pad(_products(k[:, :, first:], table), (0, 0, left, right))
        along_keys = _Sheared.apply(along_keys, past - first, q.size(2))
        band = along_keys if band is None else band + along_keys
    if "key_only" in terms:
        by_key = _product(k, wide(terms["key_only"]).unsqueeze(1) * scale)
        column = by_key if column is None else column + by_key
    if padding_mask is not None:
        column = wide(k.new_zeros(1)) if column is None else column
        column = column.masked_fill(padding_mask[:, None], HIDDEN).expand(-1, k.size(1), -1)
    curve = _curve(terms, layout, q.size(2), k.size(2), beyond, k.device)
    if "content" not in terms:
        q, k = q[..., :0], k[..., :0]
    curve = curve.to(torch.promote_types(k.dtype, torch.float32))
    by_position = (column, band, row_step, column_step)
    added = (x if x is None else x.contiguous() for x in by_position)
    return Scores(q, k, v, curve.contiguous(), *added), layout


def _in_halves(x: Tensor) -> bool:
    """Whether products take half precision as such; eight taps at a time, or they are slow."""
    return x.is_cuda and torch.version.hip is None and x.dtype.itemsize == 2 and x.numel() > 0


def _products(x: Tensor, table: Tensor) -> Tensor:
    """``[batch, heads, time, width]`` times ``[heads or 1, taps, width]``, over the width."""
    if _in_halves(x):
        return _HalfProducts.apply(x, table)
    return wide(x) @ table.transpose(-1, -2)


def _product(x: Tensor, vector: Tensor | None) -> Tensor | None:
    """``[batch, heads, time]``, likewise with ``[heads or 1, 1, width]``."""
    return None if vector is None else _products(x, vector).squeeze(-1)


def _from_edge(
    table: Tensor, causal: bool, beyond: str, cut: int, more: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Split a table ``[heads or 1, taps, width]`` into differences from its first tap, the first
    tap, and the step from it to the last. Products are linear in the table, so they split alike.
    ``cut`` of the differences on either side, beyond all keys, are left out; ``more`` taps of zero
    come before the others."""
    close = table[:, cut : table.size(1) - (0 if causal else cut)]
    if beyond != "clip":
        return F.pad(close, (0, 0, more, 0)), None, None
    first, last = table[:, :1], table[:, -1:]
    return F.pad(close - first, (0, 0, more, 0)), first, None if causal else last - first


class _HalfProducts(torch.autograd.Function):
    """``_products`` of half precision with sums in float32, as those of queries and keys."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        ctx.shared = table.size(0) == 1
        rows = x.flatten(0, 1)
        tables = table.to(x.dtype).expand(*x.shape[:2], -1, -1).flatten(0, 1)
        ctx.save_for_backward(rows, tables)
        y = torch.bmm(rows, tables.transpose(1, 2), out_dtype=torch.float32)
        return y.unflatten(0, x.shape[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, tables = ctx.saved_tensors
        outer = grad.shape[:2]
        grad = grad.flatten(0, 1).to(rows.dtype)
        table = torch.bmm(grad.transpose(1, 2), rows, out_dtype=torch.float32).unflatten(0, outer)
        return (grad @ tables).unflatten(0, outer), table.sum((0, 1) if ctx.shared else 0).view(
            -1, *tables.shape[1:]
        )


class _Sheared(torch.autograd.Function):
    """``[..., time, taps]`` -> y[..., i, c] = x[..., start + i + c, c] for i < length."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, start: int, length: int) -> Tensor:
        ctx.shape, ctx.start = x.shape, start
        return _Sheared._view(x.contiguous(), start, length).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x = grad.new_zeros(ctx.shape)
        _Sheared._view(x, ctx.start, grad.size(-2)).copy_(grad)
        return x, None, None

    @staticmethod
    def _view(x: Tensor, start: int, length: int) -> Tensor:
        *outer, _, taps = x.shape
        strides = (*x.stride()[:-2], taps, taps + 1)
        return x.as_strided((*outer, length, taps), strides, start * taps)


def _curve(
    terms: Terms, layout: Layout, queries: int, keys: int, beyond: str, device: torch.device
) -> Tensor:
    before, after = layout.extent(queries, keys)
    seen = 0 if layout.causal else after
    r = torch.arange(-before, seen + 1, device=device)
    curve = wide(relative_bias(terms, r, causal=layout.causal, beyond=beyond))
    if layout.reach is not None:
        curve = curve.masked_fill(r.abs() > layout.reach, HIDDEN)
    return F.pad(curve, (0, after - seen), value=HIDDEN)
