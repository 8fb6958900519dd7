"""What a causal convolution remembers while a sequence is decoded."""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST_SPARE = 16  # rows for coming inputs


class Past(NamedTuple):
    """The last inputs, each where it was first written.

    A new input is written into spare memory, and beam search reorders the index alone, so that
    neither copies what is remembered.

    Attributes:
        rows: ``[slots, width, channels]``.
        index: of every remembered input its row among ``slots x width``, ``[n, batch]``.
        used: the slots before hold inputs, or what was forgotten.
    """

    rows: Tensor
    index: Tensor
    used: int

    @classmethod
    def none(cls, batch: int, like: Tensor) -> "Past":
        """Nothing, before a sequence begins."""
        index = torch.empty(0, batch, dtype=torch.long, device=like.device)
        return cls(like.new_empty(0, batch, like.size(-1)), index, 0)

    def append(self, x: Tensor, keep: int) -> "Past":
        """What there is with ``x``, ``[time, batch, channels]``: the last ``keep`` inputs before
        it, or fewer, and itself. Other pasts than the result may no longer be used."""
        time, batch, _ = x.shape
        slots, width, _ = self.rows.shape
        old = self.index[max(0, len(self.index) - keep) :]
        differentiable = torch.is_grad_enabled() and (x.requires_grad or self.rows.requires_grad)
        if (
            differentiable
            or batch > width
            or self.used + time > slots
            or x.dtype != self.rows.dtype
        ):
            inputs = self._inputs(old).to(x.dtype)
            spare = 0 if differentiable else max(LEAST_SPARE, keep)
            rows = torch.cat([inputs, x, x.new_empty(spare, *x.shape[1:])])
            used = len(inputs) + time
            return Past(rows, _rows(0, used, batch, batch, x.device), used)
        self.rows[self.used : self.used + time, :batch] = x
        new = _rows(self.used, time, width, batch, x.device)
        return Past(self.rows, torch.cat([old, new]), self.used + time)

    def inputs(self) -> Tensor:
        """All that is remembered, ``[n, batch, channels]``."""
        return self._inputs(self.index)

    def reorder(self, new_order: Tensor) -> "Past":
        """That of the sentences ``new_order``, ``[batch]``."""
        return self._replace(index=self.index.index_select(1, new_order))

    def _inputs(self, index: Tensor) -> Tensor:
        return self.rows.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)


def _rows(first: int, count: int, width: int, batch: int, device: torch.device) -> Tensor:
    slots = torch.arange(first, first + count, device=device).unsqueeze(1)
    return slots * width + torch.arange(batch, device=device)
