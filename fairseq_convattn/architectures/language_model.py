"""``convattn_lm``: decoder-only language models with any token mixer in every layer."""

from argparse import Namespace

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import nn

from . import checks
from .config import LANGUAGE_MODEL
from .dictionaries import remember_dictionaries
from .presets import LANGUAGE_MODEL_PRESETS
from .pretrained import Pretrained
from .registration import (
    ConfiguredModel,
    options_to_build,
    own_value,
    register_family,
    require_task,
    set_missing,
)
from .stacks import ConvAttnDecoder


class ConvAttnLanguageModel(ConfiguredModel, Pretrained, TransformerLanguageModel):
    """fairseq's transformer language model with any token mixer of
    :data:`fairseq_convattn.mixers.MIXERS` in every layer (Wu et al. 2019, Chang et al. 2021,
    Wennberg and Henter 2021).
    """

    schema = LANGUAGE_MODEL

    @classmethod
    def build_model(
        cls, args: Namespace | DictConfig, task: FairseqTask
    ) -> "ConvAttnLanguageModel":
        """Build the model that ``args`` describes (flat; what it lacks is filled in).

        Raises:
            ValueError: an option cannot work; the message names it. Or the task is for other
                models.
        """
        require_task("convattn_lm", task)
        remember_dictionaries(args, task)
        set_missing(args, "max_target_positions", lambda: _positions(args, task))
        options = options_to_build(args, cls.schema)
        types = len(task.source_dictionary), len(task.target_dictionary)
        checks.clusters("adaptive_softmax", options, "decoder_output_dim", types[1])
        checks.output_dictionary(options, *types)
        embed_tokens = cls._embedding(options, task.source_dictionary)
        mixers = options.decoder_mixers
        cfg = TransformerConfig.from_namespace(options)
        cfg.decoder.layers = len(mixers)
        decoder = ConvAttnDecoder(
            cfg, task.target_dictionary, embed_tokens, mixers, no_encoder_attn=True
        )
        return cls(decoder)

    @classmethod
    def _embedding(cls, options: Namespace, dictionary: Dictionary) -> nn.Module:
        if options.character_embeddings:
            return CharacterTokenEmbedder(
                dictionary,
                options.character_filters,
                options.character_embedding_dim,
                options.decoder_embed_dim,
                options.char_embedder_highway_layers,
            )
        if options.adaptive_input:
            return AdaptiveInput(
                len(dictionary),
                dictionary.pad(),
                options.decoder_input_dim,
                options.adaptive_input_factor,
                options.decoder_embed_dim,
                options.adaptive_input_cutoff,
            )
        return cls.build_embedding(options, dictionary, options.decoder_input_dim)


def _positions(args: Namespace | DictConfig, task: FairseqTask) -> int:
    """The most positions, as fairseq's language model finds them; under hydra the model's own
    configuration may lack them."""
    own = own_value(args, "tokens_per_sample")
    return own or task.args.max_target_positions or task.args.tokens_per_sample


register_family("convattn_lm", ConvAttnLanguageModel, LANGUAGE_MODEL_PRESETS)
