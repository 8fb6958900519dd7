"""``convattn_lm``: decoder-only language models with any token mixer in every layer."""

import ast
from argparse import Namespace
from contextlib import nullcontext

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from omegaconf import DictConfig, open_dict
from torch import nn

from .config import LANGUAGE_MODEL, ConvAttnLanguageModelConfig, complete
from .hub import Pretrained
from .layer_mixers import boolean, layer_mixers, refuse, whole_numbers
from .presets import LANGUAGE_MODEL_PRESETS
from .registration import register_family
from .stacks import ConvAttnDecoder

_TRISTATE = [
    name
    for name, value in LANGUAGE_MODEL.base.items()
    if value in ("true", "false")
    and name not in ("decoder_glu", "share_tables_across_layers")  # which layer_mixers reads
]
_CUTOFFS = ("adaptive_softmax_cutoff", "adaptive_input_cutoff")
_PLAIN_CRITERIA = ("cross_entropy", "label_smoothed_cross_entropy")
_DIMENSIONS = ("decoder_output_dim", "decoder_input_dim")


class ConvAttnLanguageModel(Pretrained, TransformerLanguageModel):
    """fairseq's transformer language model with lightweight convolution, dynamic
    convolution or self-attention as the token mixer of every layer (Wu et al. 2019).
    """

    @classmethod
    def hub_models(cls):
        return {}

    @classmethod
    def add_args(cls, parser):
        """Options without their defaults, so that a preset can tell what was given."""
        gen_parser_from_dataclass(parser, ConvAttnLanguageModelConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args, task):
        """Build the model that ``args`` describes (flat; what it lacks is filled in).

        Raises:
            ValueError: an option cannot work; the message names it.
        """
        if getattr(args, "max_target_positions", None) is None:
            with open_dict(args) if isinstance(args, DictConfig) else nullcontext():
                args.max_target_positions = _positions(args, task)
        options = language_model_options(complete(args, LANGUAGE_MODEL))
        _check_sizes(options, len(task.source_dictionary), len(task.target_dictionary))
        embed_tokens = cls._embedding(options, task.source_dictionary)
        mixers = options.decoder_mixers
        cfg = TransformerConfig.from_namespace(options)
        cfg.decoder.layers = len(mixers)
        decoder = ConvAttnDecoder(
            cfg, task.target_dictionary, embed_tokens, mixers, no_encoder_attn=True
        )
        return cls(decoder)

    @classmethod
    def _embedding(cls, options: Namespace, dictionary) -> nn.Module:
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
                options.quant_noise_pq,
                options.quant_noise_pq_block_size,
            )
        return cls.build_embedding(options, dictionary, options.decoder_input_dim)


def language_model_options(args: Namespace) -> Namespace:
    """The options of a complete configuration with their values in place of text;
    ``decoder_mixers`` has one entry per layer.

    Raises:
        ValueError: an option cannot work; the message is one line and names it.
    """
    options = Namespace(**vars(args))
    options.decoder_mixers = layer_mixers(args, "decoder")
    for name in _TRISTATE:
        setattr(options, name, boolean(name, getattr(args, name)))
    for name in _CUTOFFS:
        setattr(options, name, _cutoffs(name, getattr(args, name)))
    options.character_filters = _filters(args.character_filters)
    _check(options)
    return options


def _positions(args: Namespace | DictConfig, task) -> int:
    """What fairseq's language model takes; a model's own configuration may lack it (hydra)."""
    own = getattr(args, "tokens_per_sample", None)
    return own or task.args.max_target_positions or task.args.tokens_per_sample


def _cutoffs(option: str, given) -> list[int] | None:
    if given is None or given == "none":
        return None
    cutoffs = whole_numbers(option, given, "20000,60000, or none")
    if sorted(set(cutoffs)) != cutoffs or cutoffs[0] < 1:
        refuse(option, f"{given!r} must rise from word to word of the dictionary, as 20000,60000")
    return cutoffs


def _filters(given: str | list) -> list[tuple[int, int]]:
    """Text on the command line, a list from Python and from YAML."""
    try:
        pairs = ast.literal_eval(given) if isinstance(given, str) else given
        filters = [(int(width), int(channels)) for width, channels in pairs]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        filters = []
    if not filters or min(min(pair) for pair in filters) < 1:
        refuse("character_filters", f"{given!r} must be (width, channels) pairs, as [(1, 64)]")
    return filters


def _check(options: Namespace) -> None:
    if options.character_embeddings and options.adaptive_input:
        refuse("character_embeddings", "cannot be had with --adaptive-input; turn that off")
    if options.adaptive_input and options.adaptive_input_cutoff is None:
        refuse(
            "adaptive_input", "needs --adaptive-input-cutoff, as 20000,60000, or to be set false"
        )
    for option in ("adaptive_softmax_factor", "adaptive_input_factor"):
        if getattr(options, option) < 1:
            refuse(option, f"{getattr(options, option)} is less than 1")
    if options.share_decoder_input_output_embed:
        _check_sharing(options)
    if options.tie_adaptive_weights:
        _check_tying(options)
    _check_criterion(options)


def _check_criterion(options: Namespace) -> None:
    criterion = getattr(options, "criterion", None)  # where a command line is checked
    if options.adaptive_softmax_cutoff is None and criterion == "adaptive_loss":
        refuse("criterion", "adaptive_loss needs --adaptive-softmax-cutoff")
    if options.adaptive_softmax_cutoff and criterion in _PLAIN_CRITERIA:
        refuse(
            "criterion",
            f"{criterion} cannot train an adaptive softmax; give adaptive_loss, and "
            "--ddp-backend legacy_ddp",
        )


def _check_sharing(options: Namespace) -> None:
    for option in ("character_embeddings", "adaptive_input"):
        if getattr(options, option):
            refuse("share_decoder_input_output_embed", f"works on a table, not {_flag(option)}")
    if options.decoder_input_dim != options.decoder_output_dim:
        refuse("share_decoder_input_output_embed", _equal(*_DIMENSIONS))


def _check_tying(options: Namespace) -> None:
    if not (options.adaptive_input and options.adaptive_softmax_cutoff):
        refuse(
            "tie_adaptive_weights",
            "needs --adaptive-input and --adaptive-softmax-cutoff, or to be set false",
        )
    for pair in (_CUTOFFS, ("adaptive_softmax_factor", "adaptive_input_factor"), _DIMENSIONS):
        if getattr(options, pair[0]) != getattr(options, pair[1]):
            refuse("tie_adaptive_weights", _equal(*pair))


def _equal(first: str, second: str) -> str:
    return f"needs equal {_flag(first)} and {_flag(second)}"


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _check_sizes(options: Namespace, source_types: int, target_types: int) -> None:
    if source_types != target_types:
        for option in ("tie_adaptive_weights", "share_decoder_input_output_embed"):
            if getattr(options, option):
                refuse(option, "needs the whole dictionary as output, not --output-dictionary-size")
    sizes = {"adaptive_softmax_cutoff": target_types}
    if options.adaptive_input:
        sizes["adaptive_input_cutoff"] = source_types
    for option, types in sizes.items():
        cutoffs = getattr(options, option)
        if cutoffs and cutoffs[-1] > types:
            refuse(option, f"{cutoffs[-1]} is beyond the dictionary's {types} types")


register_family(
    "convattn_lm",
    ConvAttnLanguageModel,
    LANGUAGE_MODEL,
    LANGUAGE_MODEL_PRESETS,
    language_model_options,
)
