"""Short convolutions of the feed-forward block (Sieberling et al. 2026)."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..mixers import MixerConfig
from ..mixers.base import IncrementalState, Remembering, State
from ..mixers.short_convolution import ShortConvolutions

FIRST, SECOND = "1", "2"  # letters of --short-convolution-on


class _Call(NamedTuple):
    """What a layer was given, and what its block's kernels are predicted from."""

    padding_mask: Tensor | None
    state: State | None
    predicted: dict[str, Tensor | None]


_this_thread = threading.local()


class FeedForwardConvolutions(Remembering, nn.Module):
    """Short convolutions of what the two linear layers of a feed-forward block give; their kernels
    are predicted from the block's input.

    fairseq's layer calls the linear ones with their input alone. So they are convolved in forward
    hooks, while the layer is called :meth:`within`.
    """

    def __init__(self, config: MixerConfig, first: nn.Linear, second: nn.Linear):
        super().__init__()
        widths = {FIRST: first.out_features, SECOND: second.out_features}
        self.short_convolutions = ShortConvolutions(config, widths)
        if self.short_convolutions:
            first.register_forward_hook(self._after_first)
            second.register_forward_hook(self._after_second)

    @contextmanager
    def within(
        self, padding_mask: Tensor | None, incremental_state: IncrementalState | None
    ) -> Iterator[None]:
        """Where a layer computes.

        Args:
            padding_mask: boolean ``[batch, time]``, True at padding.
            incremental_state: fairseq's decoding state.
        """
        state = incremental_state
        if incremental_state is not None:
            state = dict(self._get_input_buffer(incremental_state))
        _this_thread.call = _Call(padding_mask, state, {})
        try:
            yield
        finally:
            _this_thread.call = None
        if incremental_state is not None:
            self._set_input_buffer(incremental_state, state)

    def start(self) -> dict[str, Tensor]:
        """The decoding state before the first position, zeros for a batch of one."""
        kernels = {f"short_{name}": each.static for name, each in self.short_convolutions.items()}
        return {name: x.new_zeros(1, x.size(1) - 1, x.size(0)) for name, x in kernels.items()}

    def _after_first(self, linear: nn.Module, inputs: tuple[Any, ...], y: Tensor) -> Tensor:
        _this_thread.call.predicted.update(self.short_convolutions.predict(inputs[0]))
        return self._convolved(FIRST, y)

    def _after_second(self, linear: nn.Module, inputs: tuple[Any, ...], y: Tensor) -> Tensor:
        return self._convolved(SECOND, y)

    def _convolved(self, name: str, y: Tensor) -> Tensor:
        padding_mask, state, predicted = _this_thread.call
        return self.short_convolutions.convolve(name, y, predicted, padding_mask, state)
