"""The base of all token mixers: call signature, checks and decoding state."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from ..ops import Past
from .config import MixerConfig

IncrementalState = dict[str, dict[str, Tensor | Past | None]]
State = dict[str, Tensor | Past]


class Sizes(NamedTuple):
    """How much is decoded at once; ``keys`` are the encoder's positions, 0 without one."""

    sentences: int
    beams: int
    keys: int

    @property
    def rows(self) -> int:
        return self.sentences * self.beams


class Copyable:
    """A part of a model with a decoding state, which fairseq keeps by a name that copies share."""

    def __setstate__(self, state: dict) -> None:
        """Of a copy: it remembers a sequence of its own."""
        super().__setstate__(state)
        self.init_incremental_state()


class Remembering(Copyable, FairseqIncrementalState):
    """A part of a model that decodes: its state is of tensors ``[batch, ...]`` and
    :class:`~fairseq_convattn.ops.Past`."""

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> IncrementalState:
        """Give every hypothesis the state of the one that it continues (beam search).

        Args:
            new_order: ``[batch]``, for every new hypothesis the number of its old one.
        """
        state = self._get_input_buffer(incremental_state)
        reordered = {
            key: past.reorder(new_order)
            if isinstance(past, Past)
            else past.index_select(0, new_order)
            for key, past in {id(past): past for past in state.values()}.items()
        }
        state = {name: reordered[id(past)] for name, past in state.items()}
        self._set_input_buffer(incremental_state, state)
        return incremental_state

    def _get_input_buffer(self, incremental_state: IncrementalState) -> State:
        return self.get_incremental_state(incremental_state, "attn_state") or {}

    def _set_input_buffer(
        self, incremental_state: IncrementalState, buffer: State
    ) -> IncrementalState:
        return self.set_incremental_state(incremental_state, "attn_state", buffer)


class TokenMixer(Remembering, nn.Module, ABC):
    """A module with the call of fairseq's self-attention. Subclasses define :meth:`mix`.

    With ``takes_key_value``, :meth:`mix` also takes ``key``, ``value`` and ``attn_mask``.
    """

    takes_key_value = False

    def __init__(self, config: MixerConfig, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.config = config
        self.embed_dim = config.embed_dim
        self.num_heads = config.num_heads
        self.head_dim = config.embed_dim // config.num_heads

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Mix the positions of ``query``; its call is that of fairseq's self-attention.

        Args:
            query: ``[time, batch, embed_dim]``. With an ``incremental_state``, the
                positions that follow those already seen, one or several.
            key, value, attn_mask: read by :class:`SelfAttention` alone. Other mixers refuse a
                mask, and keys and values other than ``query`` itself.
            key_padding_mask: boolean ``[batch, keys]``, True at padding. Without ``key`` the
                keys are the query's positions.
            incremental_state: fairseq's decoding state (causal mixers only).
            need_weights, static_kv: not used.

        Returns:
            ``[time, batch, embed_dim]`` and None in place of attention weights.

        Raises:
            ValueError: a mask has another shape, or the mixer cannot follow what is given.
        """
        if incremental_state is not None and not self.config.causal:
            raise ValueError("only a causal mixer decodes from an incremental state")
        keys, elsewhere = query, {}
        if self.takes_key_value:
            keys = query if key is None else key
            elsewhere = {"key": key, "value": value, "attn_mask": attn_mask}
        else:
            self._require_query_alone(query, key, value, attn_mask)
        padding_mask = None
        if key_padding_mask is not None:
            padding_mask = key_padding_mask.bool()
            time, batch, _ = keys.shape
            if padding_mask.shape != (batch, time):
                raise ValueError(f"key_padding_mask must be [batch, keys] = [{batch}, {time}]")
        if incremental_state is None:
            return self.mix(query, padding_mask, None, **elsewhere), None
        state = dict(self._get_input_buffer(incremental_state))
        y = self.mix(query, padding_mask, state, **elsewhere)
        self._set_input_buffer(incremental_state, state)
        return y, None

    def _require_query_alone(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, attn_mask: Tensor | None
    ) -> None:
        name = type(self).__name__
        if attn_mask is not None:
            raise ValueError(f"{name} cannot follow an attention mask")
        others = [x for x in (key, value) if x is not None and x is not query]
        if others and not torch.jit.is_tracing():  # which copies every input
            raise ValueError(f"{name} mixes the query alone: leave key and value out")

    @abstractmethod
    def mix(self, x: Tensor, padding_mask: Tensor | None, state: State | None) -> Tensor:
        """Mix the positions of ``x``.

        Args:
            x: ``[time, batch, embed_dim]``.
            padding_mask: boolean ``[batch, time]``, True at padding.
            state: None, or what the mixer left here at earlier positions, to be updated in
                place: tensors ``[batch, ...]`` and :class:`~fairseq_convattn.ops.Past`.

        Returns:
            ``[time, batch, embed_dim]``.
        """


def initialized(linear: nn.Linear, initialization: str) -> nn.Linear:
    """``linear`` with the initial values that ``MixerConfig.initialization`` names."""
    if initialization == "xavier":
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    return linear


def dropout_p(dropout: FairseqDropout) -> float:
    """The probability with which ``dropout`` drops now: 0 in evaluation."""
    return dropout.p if dropout.training or dropout.apply_during_inference else 0.0


def without_padding(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """``x``, ``[time, batch, channels]``, with zeros where ``[batch, time]`` is True."""
    return x if padding_mask is None else x.masked_fill(padding_mask.t().unsqueeze(-1), 0)
