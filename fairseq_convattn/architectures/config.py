"""The flat configurations of ``convattn`` and ``convattn_lm`` models.

fairseq's transformer has a nested configuration whose defaults win over ``--arch``. These
are flat, and every field that a preset may set defaults to None: on the command line
and under hydra alike an explicit value wins over the preset, the preset over the base.
"""

import dataclasses
from argparse import Namespace
from dataclasses import field, make_dataclass
from typing import Any, NamedTuple, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import DictConfig, OmegaConf

from ..mixers import MIXERS
from ..ops import TAP_NORMALIZATIONS


class Schema(NamedTuple):
    """A configuration class, and what its fields mean where nobody has set them.

    Attributes:
        config: the dataclass.
        base: values of the fields that presets may set, where neither preset nor user has.
        follows: fields that take another one's value where nothing has set them.
        stacks: ``encoder`` and ``decoder``, or one of them.
    """

    config: type[FairseqDataclass]
    base: dict[str, Any]
    follows: dict[str, str]
    stacks: tuple[str, ...]


_MIXER_BASE = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_mixers": "dynamic",
    "decoder_glu": "true",
    "weight_dropout": 0.0,
    "weight_norm": "softmax",
    "input_dropout": 0.0,
}
_BASE = {
    **_MIXER_BASE,
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
    "encoder_mixers": "dynamic",
    "encoder_glu": "true",
}
_LM_BASE = {
    **_MIXER_BASE,
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
_DECODER_FOLLOWS = {
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
    "decoder_conv_dim": "decoder_embed_dim",
}
_FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "encoder_conv_dim": "encoder_embed_dim",
    **_DECODER_FOLLOWS,
}
_LM_FOLLOWS = {**_DECODER_FOLLOWS, "adaptive_input_cutoff": "adaptive_softmax_cutoff"}

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


_ENCODER_FIELDS = _side_fields("encoder", "odd (the kernel is centred)")
_DECODER_FIELDS = _side_fields("decoder", "any number >= 1 (the kernel is causal)")
_MIXER_FIELDS = [
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
            flat.append(_fairseqs(outer.name, outer, _BASE, _FOLLOWS))
            continue
        for inner in dataclasses.fields(outer.type):
            name = f"{outer.name}_{inner.name}"
            prefix = f"{outer.name.replace('_', ' ')}: "
            flat.append(_fairseqs(name, inner, _BASE, _FOLLOWS, prefix))
    return [entry for entry in flat if not entry[0].endswith("_name")]


def _language_model_fields() -> list[tuple]:
    """The options of fairseq's transformer language model."""
    options = dataclasses.fields(TransformerLanguageModelConfig)
    flat = [_fairseqs(option.name, option, _LM_BASE, _LM_FOLLOWS) for option in options]
    return [entry for entry in flat if not entry[0].endswith("_name")]


def _fairseqs(
    name: str, option: dataclasses.Field, base: dict, follows: dict, prefix: str = ""
) -> tuple:
    metadata = dict(option.metadata)
    if "help" in metadata:
        metadata["help"] = prefix + metadata["help"]
    type_, default = option.type, option.default
    if name.endswith("_layers_to_keep"):  # fairseq reads it as a string
        type_, default = Optional[str], None
    elif name in base or name in follows:
        type_, default = Optional[type_], None
        fallback = base.get(name, f"--{follows.get(name, '').replace('_', '-')}")
        metadata["help"] = f"{metadata.get('help', name.replace('_', ' '))} (default: {fallback})"
        if base.get(name) in ("true", "false"):  # a flag could not switch a preset off
            type_, metadata["argparse_const"] = Optional[str], "true"
            metadata["help"] = f"true or false: {metadata['help']}"
    if name in ("adaptive_softmax_cutoff", "adaptive_input_cutoff") and type_ == Optional[str]:
        type_ = Any  # also a list, as in YAML
        metadata["help"] = f"{metadata['help']}; none for none"
    if name == "character_filters":
        type_ = Any
    return name, type_, field(default=default, metadata=metadata)


def _config(name: str, doc: str, fields: list[tuple]) -> type[FairseqDataclass]:
    namespace = {"__doc__": doc, "__module__": __name__}
    return make_dataclass(name, fields, bases=(FairseqDataclass,), namespace=namespace)


ConvAttnConfig = _config(
    "ConvAttnConfig",
    "fairseq's transformer options and those of the token mixers.",
    [*_ENCODER_FIELDS, *_DECODER_FIELDS, *_MIXER_FIELDS, *_transformer_fields()],
)
ConvAttnLanguageModelConfig = _config(
    "ConvAttnLanguageModelConfig",
    "The options of fairseq's transformer language model and those of the token mixers.",
    [*_DECODER_FIELDS, *_MIXER_FIELDS, *_language_model_fields()],
)
DEFAULT_KERNEL_SIZES = (3, 7, 15, 31)  # Wu et al. 2019, section 5.1
ENCODER_DECODER = Schema(ConvAttnConfig, _BASE, _FOLLOWS, ("encoder", "decoder"))
LANGUAGE_MODEL = Schema(ConvAttnLanguageModelConfig, _LM_BASE, _LM_FOLLOWS, ("decoder",))


def complete(
    cfg: Namespace | DictConfig, schema: Schema = ENCODER_DECODER, preset: dict | None = None
) -> Namespace:
    """A copy of ``cfg`` in which every field has its value; None, where another part of
    fairseq's configuration has it.

    Args:
        preset: what applies before the base, where ``cfg`` says nothing. Kernel sizes in a
            tuple are as many as there are layers, the last one repeated.
    """
    given = (
        OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
        if isinstance(cfg, DictConfig)
        else vars(cfg)
    )
    values = {f.name: f.default for f in dataclasses.fields(schema.config)}
    values.update(preset or {})
    values.update((name, value) for name, value in given.items() if value is not None)
    for name, value in values.items():
        if str(value).startswith("${"):
            values[name] = None
    for name, value in schema.base.items():
        if values[name] is None:
            values[name] = value
    for name, source in schema.follows.items():
        if values[name] is None:
            values[name] = values[source]
    for side in schema.stacks:
        sizes, layers = values[f"{side}_kernel_sizes"], values[f"{side}_layers"]
        if sizes is None or isinstance(sizes, tuple):
            pattern = sizes or DEFAULT_KERNEL_SIZES
            repeated = [*pattern, *pattern[-1:] * layers]
            values[f"{side}_kernel_sizes"] = repeated[: max(0, layers)]
    return Namespace(**values)
