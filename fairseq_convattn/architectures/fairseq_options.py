"""fairseq's own options: their allowed values and their defaults in our models."""

import dataclasses
import re
from argparse import SUPPRESS, Namespace
from dataclasses import field
from enum import Enum
from typing import Any, Optional

from fairseq.dataclass.utils import interpret_dc_type
from fairseq.models.transformer import TransformerConfig

from ..mixers.config import OPTIONS, may_read
from ..mixers.options import (
    CUTOFFS,
    FILE,
    FILTERS,
    FLAG,
    LAYERS,
    SWITCH,
    Kind,
    choice,
    number,
    probability,
    unread,
    whole,
)
from ..spelling import flag

_LAYERS_AT_MOST = 1000
_KINDS = {
    r"attention_dropout": OPTIONS["attention_dropout"].kind,
    r"adaptive_(softmax|input)_cutoff": CUTOFFS,
    r"adaptive_(softmax|input)_factor": number(1),
    r"character_filters": FILTERS,
    r".*_layers_to_keep": LAYERS,
    r".*_embed_path": FILE,
    r".*_xformers_att_config": unread("no mixer is an attention of xFormers"),
    r".*layerdrop": probability(below_one="1 would drop every layer"),
    r".*dropout|quant_noise_(pq|scalar)": probability(),
    r"(encoder|decoder)_layers": whole(0, _LAYERS_AT_MOST),
    r".*_(dim|attention_heads|positions|block_size|sublayers)|tokens_per_sample": whole(1),
}
_BY_TYPE = {bool: FLAG, int: whole(0), float: number(0)}
_AS_TEXT_OR_LIST = (CUTOFFS, FILTERS)  # YAML and Python have lists

_ATTENTION = {"dropout": 0.1, "attention_dropout": 0.0}
_DECODER = {
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "no_token_positional_embeddings": "false",  # where no term knows positions
}
ENCODER_DECODER_BASE = {
    **_ATTENTION,
    **_DECODER,
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
}
LANGUAGE_MODEL_BASE = {
    **_ATTENTION,
    **_DECODER,
    "decoder_embed_dim": 512,
    "decoder_ffn_embed_dim": 2048,
    # fairseq's language models, lightconv's too: "training is not stable without this"
    "decoder_normalize_before": "true",
    "no_decoder_final_norm": "false",
    "activation_dropout": 0.0,
    "adaptive_input": "false",
    "adaptive_softmax_dropout": 0.0,
    "tie_adaptive_weights": "false",
    "tie_adaptive_proj": "false",
}
# BERT-base as RoBERTa has it
MASKED_LANGUAGE_MODEL_BASE = {
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "activation_fn": "gelu",
    "layernorm_embedding": "true",
    "no_token_positional_embeddings": "false",
}
_DECODER_FOLLOWS = {
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
    "decoder_conv_dim": "decoder_embed_dim",
}
ENCODER_DECODER_FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "encoder_conv_dim": "encoder_embed_dim",
    **_DECODER_FOLLOWS,
}
LANGUAGE_MODEL_FOLLOWS = {**_DECODER_FOLLOWS, "adaptive_input_cutoff": "adaptive_softmax_cutoff"}
MASKED_LANGUAGE_MODEL_FOLLOWS = {
    "encoder_input_dim": "encoder_embed_dim",
    "encoder_conv_dim": "encoder_embed_dim",
}
_CONDITIONAL = {
    "no_token_positional_embeddings": "true where every stack has a layer with a position term, "
    "else false"
}
# what has no effect without another option
_NEEDS = {
    "adaptive_softmax_dropout": "adaptive_softmax_cutoff",
    "adaptive_softmax_factor": "adaptive_softmax_cutoff",
    "adaptive_input_factor": "adaptive_input",
    "adaptive_input_cutoff": "adaptive_input",
    "tie_adaptive_weights": "adaptive_input",
    "tie_adaptive_proj": "tie_adaptive_weights",
    "character_embedding_dim": "character_embeddings",
    "character_filters": "character_embeddings",
    "char_embedder_highway_layers": "character_embeddings",
    "base_sublayers": "base_layers",
    "base_shuffle": "base_layers",
    "quant_noise_pq_block_size": "quant_noise_pq",
    "no_decoder_final_norm": "decoder_normalize_before",
    "no_cross_attention": "cross_self_attention",
}
# what has no effect unless another option has this value
_NEEDS_OFF = {
    "encoder_learned_pos": ("no_token_positional_embeddings", "false"),
    "decoder_learned_pos": ("no_token_positional_embeddings", "false"),
    "share_decoder_input_output_embed": ("adaptive_softmax_cutoff", "none"),
}
# what is refused whatever its value: no help text shows it
_REFUSED = {
    "quant_noise_pq": "fairseq's noise overwrites the weights; leave it out",
    "char_inputs": "no encoder here has character inputs; leave it out",
}
_HIDDEN = (
    *_REFUSED,
    *("quant_noise_pq_block_size", "encoder_xformers_att_config", "decoder_xformers_att_config"),
)
_HELP = {
    **dict.fromkeys(_HIDDEN, SUPPRESS),
    "export": "use PyTorch's layer norm, not apex's; TorchScript cannot export the models",
    "encoder_attention_heads": "encoder: number of heads, of attention and of convolutions",
    "decoder_attention_heads": "decoder: number of heads, of attention and of convolutions",
    "adaptive_softmax_factor": "how many times narrower each cluster of the adaptive softmax is",
    "offload_activations": "checkpoint activations and keep them in the CPU's memory",
}
_ROBERTA = (
    *("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_layers", "encoder_attention_heads"),
    *("encoder_normalize_before", "encoder_layerdrop", "encoder_layers_to_keep"),
    *("activation_fn", "dropout", "attention_dropout", "activation_dropout"),
    *("no_token_positional_embeddings", "layernorm_embedding"),
    *("checkpoint_activations", "offload_activations", "min_params_to_wrap"),
    *("quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"),
)


def transformer_options() -> list[dataclasses.Field]:
    """fairseq's transformer options, under the names that its command line gives them."""
    flat = []
    for outer in dataclasses.fields(TransformerConfig):
        if not dataclasses.is_dataclass(outer.type):
            flat.append(outer)
            continue
        for inner in dataclasses.fields(outer.type):
            metadata = dict(inner.metadata)
            if "help" in metadata:
                metadata["help"] = f"{outer.name.replace('_', ' ')}: {metadata['help']}"
            option = field(default=inner.default, metadata=metadata)
            option.name, option.type = f"{outer.name}_{inner.name}", inner.type
            flat.append(option)
    return flat


def roberta_options() -> list[dataclasses.Field]:
    """The options that RoBERTa shares with fairseq's transformer."""
    return [option for option in transformer_options() if option.name in _ROBERTA]


def without_effect(options: Namespace) -> dict[str, str]:
    """fairseq's options that are set without effect, each with the reason.

    Args:
        options: the values of all options, ``encoder_mixers`` and ``decoder_mixers`` resolved.
    """
    found = dict(_REFUSED)
    for option, needed in _NEEDS.items():
        if not getattr(options, needed, None):
            found[option] = f"needs {flag(needed)}"
    for option, (unwanted, off) in _NEEDS_OFF.items():
        if getattr(options, unwanted, None):
            found[option] = f"needs {flag(unwanted)} {off}"
    if getattr(options, "activation_dropout", None):
        found["relu_dropout"] = "replaced by --activation-dropout; leave it out"
    if not _attends(options):
        found["attention_dropout"] = "no layer reads it; it needs a mixer or a decoder that attends"
    width = getattr(options, "decoder_embed_dim", None)
    other_width = getattr(options, "decoder_input_dim", width) != width
    if other_width and getattr(options, "character_embeddings", True):
        found["decoder_input_dim"] = f"must be --decoder-embed-dim, {width}"
    return {option: reason for option, reason in found.items() if getattr(options, option, None)}


def _attends(options: Namespace) -> bool:
    """Whether a layer has attention, to itself or to an encoder."""
    return not getattr(options, "no_cross_attention", True) or any(
        may_read(layer.mixer, OPTIONS["attention_dropout"])
        for side in ("encoder", "decoder")
        for layer in getattr(options, f"{side}_mixers", ())
    )


def kind_of(option: dataclasses.Field, base: dict[str, Any]) -> Kind:
    """The allowed values of one of fairseq's options."""
    if base.get(option.name) in ("true", "false"):
        return SWITCH
    for pattern, kind in _KINDS.items():
        if re.fullmatch(pattern, option.name):
            return kind
    type_ = interpret_dc_type(option.type)
    return choice(x.value for x in type_) if issubclass(type_, Enum) else _BY_TYPE[type_]


def our_field(option: dataclasses.Field, base: dict[str, Any], follows: dict[str, str]) -> tuple:
    """The field of a flat configuration for one of fairseq's options.

    Fields that presets may set have no default; a flag that presets switch on takes true or false,
    so that a user can switch it off.
    """
    name, type_, default = option.name, option.type, option.default
    metadata, kind = dict(option.metadata), kind_of(option, base)
    if name in _HELP:
        metadata["help"] = _HELP[name]
    if kind is LAYERS:  # fairseq reads it as a string
        type_, default = Optional[str], None
    elif name in base or name in follows:
        type_, default = Optional[type_], None
        fallback = base.get(name, flag(follows.get(name, "")))
        fallback = _CONDITIONAL.get(name, fallback)
        metadata["help"] = f"{metadata.get('help', name.replace('_', ' '))} (default: {fallback})"
        if kind is SWITCH:  # a flag could not switch a preset off
            type_, metadata["argparse_const"] = Optional[str], "true"
            metadata["help"] = f"true or false: {metadata['help']}"
    if kind in _AS_TEXT_OR_LIST:
        type_ = Any
    if kind is CUTOFFS:
        metadata["help"] = f"{metadata['help']}; `none` means no clusters"
    return name, type_, field(default=default, metadata=metadata)
