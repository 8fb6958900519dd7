"""``convattn_mlm``: masked language models with any token mixer in every layer."""

from argparse import Namespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.model import RobertaLMHead
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn

from .config import MASKED_LANGUAGE_MODEL
from .dictionaries import remember_dictionaries
from .presets import MASKED_LM_PRESETS
from .pretrained import PretrainedMaskedLanguageModel
from .registration import (
    ConfiguredModel,
    options_to_build,
    register_family,
    require_task,
    set_missing,
)
from .stacks import ConvAttnEncoder

_TABLES = "self_attn.terms"  # a layer's parameters of relative positions


class ConvAttnMaskedLanguageModel(ConfiguredModel, PretrainedMaskedLanguageModel, RobertaModel):
    """fairseq's RoBERTa with any token mixer in every layer: BERT with convolutions (Chang et
    al. 2021) or translation-invariant attention (Wennberg and Henter 2021), and ALBERT's
    sharing (Lan et al. 2020).
    """

    schema = MASKED_LANGUAGE_MODEL

    @classmethod
    def build_model(
        cls, args: Namespace | DictConfig, task: FairseqTask
    ) -> "ConvAttnMaskedLanguageModel":
        """Build the model that ``args`` describes (flat; what it lacks is filled in).

        Raises:
            ValueError: an option cannot work; the message names it. Or the task is for other
                models.
        """
        require_task("convattn_mlm", task)
        remember_dictionaries(args, task, needed=("source",))
        set_missing(
            args,
            "max_positions",
            # multilingual_masked_lm has none
            lambda: task.max_positions() or task.args.tokens_per_sample,
        )
        options = options_to_build(args, cls.schema)
        return cls(options, MaskedLanguageModelEncoder(options, task.source_dictionary))

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """fairseq's, with two additions.

        Classification heads load also if spectral normalisation has renamed their weight. New heads
        start with the checkpoint's pooler, if it has one.
        """
        prefix = f"{name}." if name else ""
        pooler = {
            part: state_dict.pop(f"{prefix}pooler.{part}")
            for part in ("weight", "bias")
            if f"{prefix}pooler.{part}" in state_dict
        }
        sizes = {
            key.removesuffix("_orig"): weight
            for key, weight in state_dict.items()
            if "classification_heads." in key and key.endswith(".out_proj.weight_orig")
        }
        state_dict.update(sizes)
        super().upgrade_state_dict_named(state_dict, name)
        for key in sizes:
            state_dict.pop(key, None)
        for head in self.classification_heads:
            for part, value in pooler.items():
                state_dict[f"{prefix}classification_heads.{head}.dense.{part}"] = value


class MaskedLanguageModelEncoder(RobertaEncoder):
    """RoBERTa's encoder; ``args.encoder_mixers`` has one entry per layer."""

    def build_embedding(
        self, vocab_size: int, embedding_dim: int, padding_idx: int
    ) -> nn.Embedding:
        return nn.Embedding(vocab_size, self.args.encoder_input_dim, padding_idx)

    def build_encoder(
        self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> "SentenceEncoder":
        return SentenceEncoder(args, dictionary, embed_tokens)

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Tensor | None
    ) -> "FactorizedHead":
        inner_dim = self.args.encoder_input_dim
        return FactorizedHead(embed_dim, inner_dim, output_dim, activation_fn, weight)

    def max_positions(self) -> int:
        """Longest input: unlimited, as fairseq says it, without embeddings of positions."""
        if self.sentence_encoder.embed_positions is None:
            return int(FairseqEncoder.max_positions(self))
        return super().max_positions()


class SentenceEncoder(ConvAttnEncoder):
    """The stack of layers. A linear map precedes it if embeddings have another width; all layers
    may share one set of weights (Lan et al. 2020, section 3.1)."""

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding):
        cfg = TransformerConfig.from_namespace(args)
        super().__init__(cfg, dictionary, embed_tokens, args.encoder_mixers)
        inputs, width = embed_tokens.embedding_dim, args.encoder_embed_dim
        self.project_embedding = nn.Linear(inputs, width) if inputs != width else None
        self.embed_segments = nn.Embedding(args.segments, inputs) if args.segments else None
        if self.layer_norm is not None:  # fairseq's has the embeddings' width
            self.layer_norm = LayerNorm(width)
        if args.share_encoder_layers and len(self.layers) > 1:
            _share_weights(self.layers)

    def forward_embedding(
        self, src_tokens: Tensor, token_embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The input of the first layer ``[batch, time, width]``, and the scaled embeddings of
        ``src_tokens`` ``[batch, time]`` without positions."""
        if self.embed_segments is not None:
            if token_embedding is None:
                token_embedding = self.embed_tokens(src_tokens)
            token_embedding = token_embedding + self.embed_segments(self._segments(src_tokens))
        x, embed = super().forward_embedding(src_tokens, token_embedding)
        return x if self.project_embedding is None else self.project_embedding(x), embed

    def _segments(self, src_tokens: Tensor) -> Tensor:
        """The number of each token's segment [batch, time]."""
        ends = src_tokens.eq(self.dictionary.eos()).long()
        return (ends.cumsum(1) - ends).clamp(max=self.embed_segments.num_embeddings - 1)


class FactorizedHead(RobertaLMHead):
    """RoBERTa's output layer; its first linear map leads from the encoder's to the table's
    width."""

    def __init__(
        self,
        embed_dim: int,
        inner_dim: int,
        output_dim: int,
        activation_fn: str,
        weight: Tensor | None = None,
    ):
        super().__init__(inner_dim, output_dim, activation_fn, weight)
        self.dense = nn.Linear(embed_dim, inner_dim)


def _share_weights(layers: nn.ModuleList) -> None:
    """Give every layer the first one's parameters, except for its tables of positions."""
    # iterating over a LayerDropModuleList would drop layers in training
    first, *others = layers.children()
    shared = dict(first.named_modules())
    for layer in others:
        for name, module in layer.named_modules():
            if not f"{name}.".startswith(f"{_TABLES}."):
                for parameter in module._parameters:
                    setattr(module, parameter, getattr(shared[name], parameter))


register_family("convattn_mlm", ConvAttnMaskedLanguageModel, MASKED_LM_PRESETS)
