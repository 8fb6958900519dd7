"""What a causal convolution remembers while a sequence is decoded."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..implementation import check, unfit_for_operators
from ..taps import tap_weights

LEAST_SPARE = 16  # spare rows for further inputs


class Past(NamedTuple):
    """The last inputs of a sequence.

    New inputs go to spare memory, and beam search reorders only an index. Inputs are copied when
    the spare memory is full.

    Attributes:
        rows: ``[slots, width, channels]``.
        index: the row of every remembered input among ``slots x width``, ``[n, batch]``.
        numbers: the number of every row, ``[slots, width]``.
        used: number of slots written.
        last: a list of one number, which all states of this memory share: the highest slot written.
    """

    rows: Tensor
    index: Tensor
    numbers: Tensor
    used: int
    last: list[int]

    @classmethod
    def none(cls, batch: int, like: Tensor) -> "Past":
        """The empty state before a sequence begins."""
        rows = like.new_empty(0, batch, like.size(-1))
        return cls(rows, _numbers(rows), _numbers(rows), 0, [0])

    def append(self, x: Tensor, keep: int) -> "Past":
        """The state after ``x``, ``[time, batch, channels]``: ``x`` and up to ``keep`` inputs
        before it."""
        time, batch, _ = x.shape
        used = self.used + time
        old = self.index[max(0, len(self.index) - keep) :]
        if not self._has_room(x):
            return self._moved(old, x, keep)
        self.rows[self.used : used, :batch] = x
        self.last[0] = used
        new = self.numbers[self.used : used, :batch]
        return self._replace(index=torch.cat([old, new]), used=used)

    def _has_room(self, x: Tensor) -> bool:
        """Whether ``x`` fits into memory that no other state reads."""
        slots, width, _ = self.rows.shape
        fits = x.size(1) <= width and self.used + x.size(0) <= slots and x.dtype == self.rows.dtype
        writable = torch.is_inference_mode_enabled() or not self.rows.is_inference()
        # torch.func, forward mode, tracing and export may not write into what was there before them
        alone = self.used == self.last[0] and not unfit_for_operators()
        return fits and writable and alone and not self._is_differentiable(x)

    def _is_differentiable(self, x: Tensor) -> bool:
        return torch.is_grad_enabled() and (x.requires_grad or self.rows.requires_grad)

    def _moved(self, old: Tensor, x: Tensor, keep: int) -> "Past":
        inputs = self._inputs(old).to(x.dtype)
        spare = 0 if self._is_differentiable(x) else max(LEAST_SPARE, keep)
        rows = torch.cat([inputs, x, x.new_empty(spare, *x.shape[1:])])
        used, numbers = len(inputs) + x.size(0), _numbers(rows)
        return Past(rows, numbers[:used], numbers, used, [used])

    def inputs(self) -> Tensor:
        """The remembered inputs, ``[n, batch, channels]``."""
        return self._inputs(self.index)

    def reorder(self, new_order: Tensor) -> "Past":
        """The state of the sentences ``new_order``, ``[batch]``."""
        return self._replace(index=self.index.index_select(1, new_order))

    def _inputs(self, index: Tensor) -> Tensor:
        return self.rows.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)


class Ring(Past):
    """A past of a fixed size that stays in one place: the newest input replaces the oldest one.

    It takes one input at a time, of the full width, and ``keep`` is the size less one.
    """

    @classmethod
    def of(cls, past: Past, size: int, width: int) -> "Ring":
        """``past``, at most ``size`` inputs of a batch up to ``width``, after zeros."""
        inputs = past.inputs()
        missing = size - len(inputs), width - inputs.size(1)
        rows = F.pad(inputs, (0, 0, 0, missing[1], missing[0], 0))
        numbers = _numbers(rows)
        return cls(rows, numbers.clone(), numbers, size, [size])

    def append(self, x: Tensor, keep: int) -> "Ring":
        width = self.rows.size(1)
        check(x.shape[:2] == (1, width), f"a ring takes one input of {width}, not {list(x.shape)}")
        newest = self.index[0] // width * width + self.numbers[0]
        self.rows.flatten(0, 1).index_copy_(0, newest, x[0])
        return self._replace(index=torch.cat([self.index[1:], newest[None]]))

    def past(self, batch: int) -> Past:
        """The first ``batch`` sentences in memory of their own."""
        inputs = self._inputs(self.index[:, :batch])
        return Past.none(batch, inputs).append(inputs, len(inputs))


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
    inputs = torch.cat([tail.to(x.dtype), x])[-(x.size(0) + kernel_size - 1) :]
    return inputs, inputs[inputs.size(0) - min(inputs.size(0), kernel_size - 1) :].clone()


def _numbers(rows: Tensor) -> Tensor:
    slots, width, _ = rows.shape
    return torch.arange(slots * width, device=rows.device).view(slots, width)
