"""The flat configuration of ``convattn`` models.

fairseq's transformer has a nested configuration whose defaults win over ``--arch``. This
one is flat, and every field that a preset may set defaults to None: on the command line
and under hydra alike an explicit value wins over the preset, the preset over the base.
"""

import dataclasses
from argparse import Namespace
from dataclasses import field, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from ..mixers import MIXERS
from ..ops import TAP_NORMALIZATIONS

# Values of the fields that presets may set, where neither preset nor user has set them.
BASE = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "encoder_mixers": "dynamic",
    "decoder_mixers": "dynamic",
    "encoder_glu": "true",
    "decoder_glu": "true",
    "weight_dropout": 0.0,
    "weight_norm": "softmax",
    "input_dropout": 0.0,
}

# Fields that take another one's value where nothing has set them.
FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
    "encoder_conv_dim": "encoder_embed_dim",
    "decoder_conv_dim": "decoder_embed_dim",
}

_PER_LAYER = "one for all layers, or a comma-separated list with one per layer"
_NORMS = "; ".join(f"{name}: {formula}" for name, formula in TAP_NORMALIZATIONS.items())


def _unset(name: str, type_: Any, help_: str) -> tuple:
    type_ = type_ if type_ is Any else Optional[type_]
    return name, type_, field(default=None, metadata={"help": help_})


def _flag(name: str, help_: str) -> tuple:
    return name, bool, field(default=False, metadata={"help": help_})


def _side_fields(side: str, kernel: str) -> list[tuple]:
    return [
        _unset(
            f"{side}_mixers",
            str,
            f"token mixers of the {side}: {', '.join(MIXERS)}; {_PER_LAYER} (default: dynamic)",
        ),
        _unset(
            f"{side}_kernel_sizes",
            Any,
            f"taps of the {side}'s convolutions, {kernel}; {_PER_LAYER} "
            "(default: 3,7,15 and then 31)",
        ),
        _unset(
            f"{side}_conv_dim",
            int,
            f"width of the {side}'s convolutions (default: its embedding dimension)",
        ),
        _unset(
            f"{side}_glu",
            str,
            f"true or false: gate the input of the {side}'s convolutions (default: true)",
        ),
    ]


def _mixer_fields() -> list[tuple]:
    return [
        *_side_fields("encoder", "odd (the kernel is centred)"),
        *_side_fields("decoder", "any number >= 1 (the kernel is causal)"),
        _unset(
            "weight_dropout",
            float,
            "DropConnect: probability of dropping a normalised tap (default: 0)",
        ),
        _unset(
            "weight_norm",
            ChoiceEnum(list(TAP_NORMALIZATIONS)),
            f"normalisation of the K taps W of a kernel. {_NORMS} (default: softmax)",
        ),
        _unset(
            "input_dropout",
            float,
            "dropout probability of the convolutions' input (default: 0)",
        ),
        _flag("conv_bias", "add a learned bias after every convolution"),
        _flag(
            "renorm_padding",
            "normalise kernels over the taps that fall on tokens, so that no weight is "
            "lost at the edges and at padding",
        ),
    ]


def _transformer_fields() -> list[tuple]:
    """fairseq's transformer options, under the names that its command line gives them."""
    flat = []
    for outer in dataclasses.fields(TransformerConfig):
        if not dataclasses.is_dataclass(outer.type):
            flat.append(_transformer_field(outer.name, outer, ""))
            continue
        for inner in dataclasses.fields(outer.type):
            name = f"{outer.name}_{inner.name}"
            flat.append(_transformer_field(name, inner, f"{outer.name.replace('_', ' ')}: "))
    return [entry for entry in flat if not entry[0].endswith("_name")]


def _transformer_field(name: str, option: dataclasses.Field, prefix: str) -> tuple:
    metadata = dict(option.metadata)
    if "help" in metadata:
        metadata["help"] = prefix + metadata["help"]
    type_, default = option.type, option.default
    if name.endswith("_layers_to_keep"):  # fairseq reads it as a string
        type_, default = Optional[str], None
    elif name in BASE or name in FOLLOWS:
        type_, default = Optional[type_], None
        fallback = BASE.get(name, f"--{FOLLOWS.get(name, '').replace('_', '-')}")
        metadata["help"] = f"{metadata.get('help', name.replace('_', ' '))} (default: {fallback})"
    return name, type_, field(default=default, metadata=metadata)


ConvAttnConfig = make_dataclass(
    "ConvAttnConfig",
    [*_mixer_fields(), *_transformer_fields()],
    bases=(FairseqDataclass,),
    namespace={
        "__doc__": "fairseq's transformer options and those of the token mixers.",
        "__module__": __name__,
    },
)


def complete(cfg: Namespace | DictConfig) -> Namespace:
    """A copy of ``cfg`` in which every field has its value."""
    given = (
        OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
        if isinstance(cfg, DictConfig)
        else vars(cfg)
    )
    values = {f.name: f.default for f in dataclasses.fields(ConvAttnConfig)}
    values.update((name, value) for name, value in given.items() if value is not None)
    for name, value in BASE.items():
        if values[name] is None:
            values[name] = value
    for name, source in FOLLOWS.items():
        if values[name] is None:
            values[name] = values[source]
    for side in ("encoder", "decoder"):
        if values[f"{side}_kernel_sizes"] is None:
            values[f"{side}_kernel_sizes"] = default_kernel_sizes(values[f"{side}_layers"])
    return Namespace(**values)


def default_kernel_sizes(layers: int) -> list[int]:
    """3, 7, 15 and then 31 (Wu et al. 2019, section 5.1), for any number of layers."""
    return ([3, 7, 15] + [31] * layers)[: max(0, layers)]
