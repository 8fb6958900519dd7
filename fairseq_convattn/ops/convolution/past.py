"""What a causal convolution remembers while a sequence is decoded."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..taps import tap_weights

LEAST_SPARE = 16  # spare rows for further inputs


class Past(NamedTuple):
    """The last inputs of a sequence.

    New inputs go to spare memory, and beam search reorders only an index. Inputs are copied when
    the spare memory is full.

    Attributes:
        rows: ``[slots, width, channels]``.
        index: the row of every remembered input among ``slots x width``, ``[n, batch]``.
        used: number of slots written.
        last: a list of one number, which all states of this memory share: the highest slot written.
    """

    rows: Tensor
    index: Tensor
    used: int
    last: list[int]

    @classmethod
    def none(cls, batch: int, like: Tensor) -> "Past":
        """The empty state before a sequence begins."""
        index = torch.empty(0, batch, dtype=torch.long, device=like.device)
        return cls(like.new_empty(0, batch, like.size(-1)), index, 0, [0])

    def append(self, x: Tensor, keep: int) -> "Past":
        """The state after ``x``, ``[time, batch, channels]``: ``x`` and up to ``keep`` inputs
        before it."""
        time, batch, _ = x.shape
        width, used = self.rows.size(1), self.used + time
        old = self.index[max(0, len(self.index) - keep) :]
        if not self._has_room(x):
            return self._moved(old, x, keep)
        self.rows[self.used : used, :batch] = x
        self.last[0] = used
        new = _rows(self.used, time, width, batch, x.device)
        return self._replace(index=torch.cat([old, new]), used=used)

    def _has_room(self, x: Tensor) -> bool:
        """Whether ``x`` fits into memory that no other state reads."""
        slots, width, _ = self.rows.shape
        fits = x.size(1) <= width and self.used + x.size(0) <= slots and x.dtype == self.rows.dtype
        writable = torch.is_inference_mode_enabled() or not self.rows.is_inference()
        alone = self.used == self.last[0]
        return fits and writable and alone and not self._is_differentiable(x)

    def _is_differentiable(self, x: Tensor) -> bool:
        return torch.is_grad_enabled() and (x.requires_grad or self.rows.requires_grad)

    def _moved(self, old: Tensor, x: Tensor, keep: int) -> "Past":
        inputs = self._inputs(old).to(x.dtype)
        spare = 0 if self._is_differentiable(x) else max(LEAST_SPARE, keep)
        rows = torch.cat([inputs, x, x.new_empty(spare, *x.shape[1:])])
        used, batch = len(inputs) + x.size(0), x.size(1)
        return Past(rows, _rows(0, used, batch, batch, x.device), used, [used])

    def inputs(self) -> Tensor:
        """The remembered inputs, ``[n, batch, channels]``."""
        return self._inputs(self.index)

    def reorder(self, new_order: Tensor) -> "Past":
        """The state of the sentences ``new_order``, ``[batch]``."""
        return self._replace(index=self.index.index_select(1, new_order))

    def _inputs(self, index: Tensor) -> Tensor:
        return self.rows.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)


def step(inputs: Tensor, taps: Tensor, softmax: bool) -> Tensor:
    """The output of the last of ``inputs``, as one matrix product: less work to launch on a GPU
    than a kernel of ours. Weights are rounded to the dtype of the inputs.

    Args:
        inputs: ``[n, batch, channels]``, at most as many as taps; there are none before them.
        taps: ``[heads, kernel_size]`` or ``[1, batch, heads, kernel_size]``.

    Returns:
        ``[1, batch, channels]``.
    """
    n, batch, channels = inputs.shape
    heads, kernel_size = taps.shape[-2:]
    weights = tap_weights(taps, softmax, None, 1.0)[..., kernel_size - n :].to(inputs.dtype)
    weights = weights.expand(1, batch, heads, n).reshape(batch * heads, 1, n)
    windows = inputs.reshape(n, batch * heads, channels // heads).transpose(0, 1)
    return torch.bmm(weights, windows).to(inputs.dtype).view(1, batch, channels)


def continued(tail: Tensor, x: Tensor, kernel_size: int) -> tuple[Tensor, Tensor]:
    """The inputs that the outputs of ``x`` see, and the tail for the next call."""
    inputs = torch.cat([tail, x])[-(x.size(0) + kernel_size - 1) :]
    return inputs, inputs[inputs.size(0) - min(inputs.size(0), kernel_size - 1) :].clone()


def _rows(first: int, count: int, width: int, batch: int, device: torch.device) -> Tensor:
    rows = torch.arange(first * width, (first + count) * width, device=device)
    return rows.view(count, width)[:, :batch]
