"""fairseq's transformer encoder and decoder with a chosen token mixer in every layer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
)
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..mixers import CrossAttention, MixerConfig, build_mixer
from ..mixers.base import IncrementalState, TokenMixer, initialized
from .dropout import use_fast_dropout
from .feed_forward import FIRST, SECOND, ConvolvedLinear, FeedForwardConvolutions
from .step_graphs import BATCH, StepGraphs, suits_graphs


class _MixerLayer:
    """Changes of both kinds of layer: the token mixer, the initial values, the layout.

    fairseq's stacks give the layers a transposed x ``[time, batch, channels]``. With layer norms
    before the sub-layers, each would copy it, and every residual connection would add slowly.
    """

    def __init__(self, cfg: TransformerConfig, mixer: MixerConfig, *args):
        self.mixer_config = mixer
        super().__init__(cfg, *args)
        self.feed_forward_convolutions = None
        if isinstance(self.fc1, ConvolvedLinear):
            self.feed_forward_convolutions = FeedForwardConvolutions(mixer, self.fc1, self.fc2)

    def build_self_attention(
        self,
        embed_dim: int,
        cfg: TransformerConfig,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> TokenMixer:
        return build_mixer(self.mixer_config)

    def build_fc1(
        self, input_dim: int, output_dim: int, q_noise: float, qn_block_size: int
    ) -> nn.Linear:
        are_convolved = {FIRST, SECOND} & set(self.mixer_config.short_convolved)
        kind = ConvolvedLinear if are_convolved else nn.Linear
        return initialized(kind(input_dim, output_dim), self.mixer_config.initialization)

    build_fc2 = build_fc1

    def _computing(
        self, padding_mask: Tensor | None, state: IncrementalState | None
    ) -> AbstractContextManager:
        if self.feed_forward_convolutions is None:
            return nullcontext()
        if not all(isinstance(linear, ConvolvedLinear) for linear in (self.fc1, self.fc2)):
            raise RuntimeError("fc1 or fc2 was replaced or wrapped, which ends its convolution")
        return self.feed_forward_convolutions.within(padding_mask, state)


class ConvAttnEncoderLayer(_MixerLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer around any mixer."""

    def forward(
        self, x: Tensor, encoder_padding_mask: Tensor | None, attn_mask: Tensor | None = None
    ) -> Tensor:
        """fairseq's."""
        with self._computing(encoder_padding_mask, None):
            return super().forward(x.contiguous(), encoder_padding_mask, attn_mask)


class ConvAttnDecoderLayer(_MixerLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer around any causal mixer."""

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        prev_self_attn_state: list[Tensor] | None = None,
        prev_attn_state: list[Tensor] | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, None]:
        """fairseq's."""
        with self._computing(self_attn_padding_mask, incremental_state):
            return super().forward(
                x.contiguous(),
                *(encoder_out, encoder_padding_mask, incremental_state),
                *(prev_self_attn_state, prev_attn_state),
                *(self_attn_mask, self_attn_padding_mask, need_attn, need_head_weights),
            )

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> CrossAttention:
        return CrossAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
        )


def _wrapped(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Checkpointing and FSDP, as fairseq wraps the layers that it builds itself."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    min_params = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    return fsdp_wrap(layer, min_num_params=min_params)


def _share_tables(layer: _MixerLayer, first: dict[str, nn.Module]) -> None:
    """Give a layer that asks for it the relative-position tables of the stack's ``first`` layer
    with its mixer."""
    config, mixer = layer.mixer_config, layer.self_attn
    if config.share_tables_across_layers and hasattr(mixer, "terms"):
        mixer.terms = first.setdefault(config.mixer, mixer.terms)


class ConvAttnEncoder(TransformerEncoderBase):
    """fairseq's transformer encoder; ``mixers`` has one entry per layer."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Module,
        mixers: list[MixerConfig],
    ):
        self._mixers, self._tables = iter(mixers), {}
        super().__init__(cfg, dictionary, embed_tokens)
        use_fast_dropout(self)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        layer = ConvAttnEncoderLayer(cfg, next(self._mixers))
        _share_tables(layer, self._tables)
        return _wrapped(layer, cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Tensor | None]]:
        """As fairseq's. That asks the GPU before every layer whether there is padding, and waits
        for the answer; this asks once."""
        padding_mask = src_tokens.eq(self.padding_idx)
        padded = bool(padding_mask.any())
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if padded:
            x = x * (~padding_mask).unsqueeze(-1).type_as(x)
        states = [x := x.transpose(0, 1)]
        for layer in self.layers:
            x = layer(x, encoder_padding_mask=padding_mask if padded else None)
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states if return_all_hiddens else [],
            "fc_results": [None] * (len(states) - 1),
            "src_tokens": [],
            "src_lengths": [lengths.reshape(-1, 1).contiguous()],
        }

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Tensor]], new_order: Tensor
    ) -> dict[str, list[Tensor]]:
        """fairseq's, but without a copy while every hypothesis stays with its sentence."""
        sentences = encoder_out.get("sentences")
        if sentences is None:
            batch = encoder_out["encoder_out"][0].size(1)
            sentences = [torch.arange(batch, device=new_order.device)]
        reordered = sentences[0].index_select(0, new_order)
        if torch.equal(reordered, sentences[0]):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentences": [reordered]}

    def register_backward_hook(self, hook: Callable) -> RemovableHandle:
        """A full backward hook, for fairseq's NaN detector: PyTorch's older kind raises
        StopIteration for outputs that are dictionaries of lists."""
        return self.register_full_backward_hook(hook)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """fairseq's, which drops the last layer norm where the version is missing: its averages
        over the training (``--store-ema``) leave it out."""
        state_dict.setdefault(f"{name}.version", self.version)
        return super().upgrade_state_dict_named(state_dict, name)


class ConvAttnDecoder(TransformerDecoderBase):
    """fairseq's transformer decoder; ``mixers`` has one entry per layer, all causal."""

    step_graphs: StepGraphs | None = None

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Module,
        mixers: list[MixerConfig],
        no_encoder_attn: bool = False,
    ):
        self._mixers, self._tables = iter(mixers), {}
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        use_fast_dropout(self)
        for name, buffer in self.named_buffers():
            # buffers of adaptive softmax and input that fairseq never sets
            if name.endswith("_float_tensor"):
                buffer.zero_()

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        layer = ConvAttnDecoderLayer(cfg, next(self._mixers), no_encoder_attn)
        _share_tables(layer, self._tables)
        return _wrapped(layer, cfg)

    def buffered_future_mask(self, tensor: Tensor) -> None:
        """None: every mixer is causal by itself, so no time x time mask is built."""
        return None

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """The encoder's, without the output projection that fairseq adds for shared embeddings: a
        model with an adaptive softmax has none."""
        state_dict.setdefault(f"{name}.version", self.version)
        state_dict = super().upgrade_state_dict_named(state_dict, name)
        if self.adaptive_softmax is not None:
            state_dict.pop(f"{name}.output_projection.weight", None)
        return state_dict

    def make_generation_fast_(self, retain_dropout: bool = False, **kwargs) -> None:
        """Called by fairseq's commands that decode. On a GPU, steps become CUDA graphs where the
        decoder's state has a fixed size."""
        if suits_graphs(self) and not retain_dropout:
            self.step_graphs = StepGraphs()

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any] | None]:
        """fairseq's, except that ``full_context_alignment`` raises ValueError."""
        if full_context_alignment:
            raise ValueError("causal mixers cannot decode with full_context_alignment")
        if self.step_graphs is not None and incremental_state is not None:
            usual = alignment_layer is None and alignment_heads is None
            found = self.step_graphs.step(self, prev_output_tokens, incremental_state, usual)
            if found is not None:
                return found
        return super().extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """fairseq's, or the graph's of a batch that has one."""
        batch = incremental_state.get(BATCH)
        if batch is not None:
            if batch.reorder(self, new_order):
                return
            batch.leave(self, incremental_state)
        super().reorder_incremental_state_scripting(incremental_state, new_order)
