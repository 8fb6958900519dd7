"""Lightweight and dynamic convolution sub-layers (Wu et al. 2019, sections 3 to 5)."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from ..ops import Past, dynamic_conv, lightweight_conv, normalize_taps, taps_inside
from .config import MixerConfig

IncrementalState = dict[str, dict[str, Tensor | None]]


class ConvolutionMixer(FairseqIncrementalState, nn.Module, ABC):
    """Input dropout -> linear (and GLU) -> zero at padding -> convolution -> linear.

    Subclasses say where the kernels come from. In the 2019 code these are ``linear1``,
    ``conv`` and ``linear2`` of a layer.
    """

    def __init__(self, config: MixerConfig):
        super().__init__()
        self.config = config
        self.embed_dim = config.embed_dim
        self.num_heads = config.num_heads
        self.head_dim = config.embed_dim // config.num_heads
        self.conv_dim = config.conv_dim or config.embed_dim
        name = type(self).__name__
        self.input_dropout_module = FairseqDropout(config.input_dropout, module_name=name)
        self.tap_dropout_module = FairseqDropout(config.weight_dropout, module_name=name)
        self.in_proj = self._linear(self.embed_dim, self.conv_dim * (2 if config.glu else 1))
        self.out_proj = self._linear(self.conv_dim, self.embed_dim)
        self.bias = nn.Parameter(torch.zeros(self.conv_dim)) if config.conv_bias else None

    def _linear(self, inputs: int, outputs: int) -> nn.Module:
        linear = nn.Linear(inputs, outputs)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        return self._with_quant_noise(linear)

    def _with_quant_noise(self, linear: nn.Linear) -> nn.Module:
        return quant_noise(linear, self.config.quant_noise, self.config.quant_noise_block_size)

    @abstractmethod
    def kernel_logits(self, x: Tensor) -> Tensor:
        """Kernels before normalisation, from the tensor that is convolved.

        Args:
            x: ``[time, batch, conv_dim]``.

        Returns:
            ``[heads, kernel_size]`` or ``[time, batch, heads, kernel_size]``.
        """

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
            key, value, need_weights, static_kv: not used; a convolution has one input
                and no attention weights.
            key_padding_mask: boolean ``[batch, time]``, True at padding.
            incremental_state: fairseq's decoding state (causal mixers only).
            attn_mask: must be None.

        Returns:
            ``[time, batch, embed_dim]`` and None in place of attention weights.

        Raises:
            ValueError: an ``attn_mask`` is given, or a state to a mixer that is not causal.
        """
        if attn_mask is not None:
            raise ValueError("a convolution cannot follow an attention mask")
        if incremental_state is not None and not self.config.causal:
            raise ValueError("only a causal mixer decodes from an incremental state")
        x = self.in_proj(self.input_dropout_module(query))
        if self.config.glu:
            x = F.glu(x, dim=-1)
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.t().unsqueeze(-1), 0)
        return self.out_proj(self._convolve(x, key_padding_mask, incremental_state)), None

    def _convolve(
        self, x: Tensor, padding_mask: Tensor | None, incremental_state: IncrementalState | None
    ) -> Tensor:
        state = self._get_input_buffer(incremental_state)
        options = {"causal": self.config.causal, "dropout_p": self._tap_dropout()}
        taps = self.kernel_logits(x)
        if self.config.tap_norm == "softmax" and not self.config.renorm_padding:
            options["softmax"] = True
        else:
            inside = None
            if self.config.renorm_padding:
                inside = self._taps_inside(x, padding_mask, state)
            taps = normalize_taps(taps, self.config.tap_norm, inside)
        if taps.dim() == 2 and options["dropout_p"] > 0:
            taps = taps.expand(*x.shape[:2], -1, -1)
        convolution = lightweight_conv if taps.dim() == 2 else dynamic_conv
        if incremental_state is None:
            return convolution(x, taps, self.bias, **options)
        past = state.get("past") or Past.none(x.size(1), x)
        y, state["past"] = convolution(x, taps, self.bias, tail=past, **options)
        self._set_input_buffer(incremental_state, state)
        return y

    def _tap_dropout(self) -> float:
        dropout = self.tap_dropout_module
        return dropout.p if self.training or dropout.apply_during_inference else 0.0

    def _taps_inside(self, x: Tensor, padding_mask: Tensor | None, state: dict) -> Tensor:
        """``[time, batch, 1, kernel_size]``; remembers in ``state`` which inputs were real."""
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if padding_mask is not None:
            real = ~padding_mask.t()
        if "prev_real" in state:
            real = torch.cat([state["prev_real"], real])
        kernel_size = self.config.kernel_size
        state["prev_real"] = real[max(0, real.size(0) - kernel_size + 1) :]
        return taps_inside(real, x.size(0), kernel_size, causal=self.config.causal)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor):
        """Give every hypothesis the state of the one that it continues (beam search)."""
        state = self._get_input_buffer(incremental_state)
        if state:
            new_state = {"past": state["past"].reorder(new_order)}
            if "prev_real" in state:  # [positions, batch]
                new_state["prev_real"] = state["prev_real"].index_select(1, new_order)
            self._set_input_buffer(incremental_state, new_state)
        return incremental_state

    def _get_input_buffer(self, incremental_state):
        return self.get_incremental_state(incremental_state, "conv_state") or {}

    def _set_input_buffer(self, incremental_state, buffer):
        return self.set_incremental_state(incremental_state, "conv_state", buffer)


class LightweightConvolution(ConvolutionMixer):
    """One kernel per head for all positions (Wu et al. 2019, section 3).

    With DropConnect the kernel is dropped independently at every position, as the
    paper drops entries of the banded matrix.
    """

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        kernel = torch.empty(config.num_heads, 1, config.kernel_size)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(kernel).squeeze(1))

    def kernel_logits(self, x: Tensor) -> Tensor:
        return self.kernel


class DynamicConvolution(ConvolutionMixer):
    """A kernel predicted at every position from that position (Wu et al. 2019, section 4)."""

    def __init__(self, config: MixerConfig):
        super().__init__(config)
        self.kernel_proj = self._with_quant_noise(
            nn.Linear(self.conv_dim, config.num_heads * config.kernel_size, bias=False)
        )

    def kernel_logits(self, x: Tensor) -> Tensor:
        return self.kernel_proj(x).unflatten(-1, (self.num_heads, self.config.kernel_size))
