"""Short convolutions of the feed-forward block (Sieberling et al. 2026)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from ..mixers import MixerConfig
from ..mixers.base import IncrementalState, Remembering, State
from ..mixers.short_convolution import ShortConvolutions

FIRST, SECOND = "1", "2"  # letters of --short-convolution-on


class ConvolvedLinear(nn.Linear):
    """A linear layer; ``convolve`` turns its input and its output into the result."""

    convolve: Callable[[Tensor, Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x, super().forward(x))


class _Call(NamedTuple):
    """What a layer was given, and what its block's kernels are predicted from."""

    padding_mask: Tensor | None
    state: State | None
    predicted: dict[str, Tensor | None]


_this_thread = threading.local()


class FeedForwardConvolutions(Remembering, ShortConvolutions):
    """Short convolutions of what the two linear layers of a feed-forward block give; their kernels
    are predicted from the block's input.

    fairseq's layers give the linear ones their input alone. What else the convolutions need they
    know while the layer is called :meth:`within`.
    """

    def __init__(self, config: MixerConfig, first: ConvolvedLinear, second: ConvolvedLinear):
        width, heads = first.out_features, config.num_heads
        if config.short_convolution == "headwise" and width % heads:
            raise ValueError(
                f"--short-convolution-on {config.short_convolution_on}: {heads} heads do not "
                f"divide the {width} channels of the feed-forward block"
            )
        super().__init__(config, {FIRST: width, SECOND: second.out_features})
        first.convolve, second.convolve = self._after_first, self._after_second

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
        outer = getattr(_this_thread, "call", None)
        _this_thread.call = _Call(padding_mask, state, {})
        try:
            yield
        finally:
            _this_thread.call = outer
        if incremental_state is not None:
            self._set_input_buffer(incremental_state, state)

    def start(self) -> dict[str, Tensor]:
        """The decoding state before the first position, zeros for a batch of one."""
        kernels = {f"short_{name}": each.static for name, each in self.items()}
        return {name: x.new_zeros(1, x.size(1) - 1, x.size(0)) for name, x in kernels.items()}

    def _after_first(self, x: Tensor, y: Tensor) -> Tensor:
        call = _this_thread.call
        call.predicted.update(self.predict(x, call.state))
        return self._convolved(FIRST, y)

    def _after_second(self, x: Tensor, y: Tensor) -> Tensor:
        return self._convolved(SECOND, y)

    def _convolved(self, name: str, y: Tensor) -> Tensor:
        padding_mask, state, predicted = _this_thread.call
        return self.convolve(name, y, predicted, padding_mask, state)
