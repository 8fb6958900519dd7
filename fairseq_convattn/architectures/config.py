"""The flat configurations of ``convattn``, ``convattn_lm`` and ``convattn_mlm`` models.

fairseq's transformer has a nested configuration whose defaults win over ``--arch``. These
are flat, and every field that a preset may set defaults to None: on the command line
and under hydra alike an explicit value wins over the preset, the preset over the base.
"""

import dataclasses
from argparse import Namespace
from dataclasses import field, make_dataclass
from enum import Enum
from typing import Any, NamedTuple, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import interpret_dc_type
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from fairseq.utils import get_available_activation_fns
from omegaconf import DictConfig, OmegaConf

from ..mixers import MIXERS, options
from ..mixers.composite import TISA_TERMS
from ..ops.attention import POSITION_TERMS, TERMS
from .mixer_fields import DECODER_FIELDS, ENCODER_FIELDS, MIXER_FIELDS, flag, switch, unset


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
    "attention_terms": "content,fixed,query",
    "attention_span": 8,
    "beyond_span": "clip",
    "tisa_kernels": 5,
    "share_tables_across_layers": "false",
    "query_key_projection": "linear",
    "value_projection": "linear",
    "projection_activation": "linear",
    "convolved_heads": "all",
    "value_conv": "none",
    "no_token_positional_embeddings": "false",  # where no term knows positions
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
# BERT-base as RoBERTa has it
_MLM_BASE = {
    **{name: value for name, value in _MIXER_BASE.items() if not name.startswith("decoder_")},
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_mixers": "dynamic",
    "encoder_glu": "true",
    "attention_dropout": 0.1,
    "activation_fn": "gelu",
    "layernorm_embedding": "true",
    "share_encoder_layers": "false",
    "segments": 0,
    "pooler_activation_fn": "tanh",
    "pooler_dropout": 0.0,
}
_CONDITIONAL = {
    "no_token_positional_embeddings": "true where every stack has a layer with a position term, "
    "else false"
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
_MLM_FOLLOWS = {
    "encoder_input_dim": "encoder_embed_dim",
    "encoder_conv_dim": "encoder_embed_dim",
}
_LM_FOLLOWS = {**_DECODER_FOLLOWS, "adaptive_input_cutoff": "adaptive_softmax_cutoff"}


def _transformer_fields(base: dict, follows: dict) -> list[tuple]:
    """fairseq's transformer options, under the names that its command line gives them."""
    flat = []
    for outer in dataclasses.fields(TransformerConfig):
        if not dataclasses.is_dataclass(outer.type):
            flat.append(_fairseqs(outer.name, outer, base, follows))
            continue
        for inner in dataclasses.fields(outer.type):
            name = f"{outer.name}_{inner.name}"
            prefix = f"{outer.name.replace('_', ' ')}: "
            flat.append(_fairseqs(name, inner, base, follows, prefix))
    return [entry for entry in flat if not entry[0].endswith("_name")]


def _language_model_fields() -> list[tuple]:
    """The options of fairseq's transformer language model."""
    options = dataclasses.fields(TransformerLanguageModelConfig)
    flat = [_fairseqs(option.name, option, _LM_BASE, _LM_FOLLOWS) for option in options]
    return [entry for entry in flat if not entry[0].endswith("_name")]


# what RoBERTa shares with fairseq's transformer
_ENCODER_OPTIONS = (
    *("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_layers", "encoder_attention_heads"),
    *("encoder_normalize_before", "encoder_layerdrop", "encoder_layers_to_keep"),
    *("activation_fn", "dropout", "attention_dropout", "activation_dropout"),
    *("no_token_positional_embeddings", "layernorm_embedding"),
    *("checkpoint_activations", "offload_activations", "min_params_to_wrap"),
    *("quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"),
)


def _masked_language_model_fields() -> list[tuple]:
    """The options of fairseq's RoBERTa, which has them on its command line alone, and those
    of ALBERT (Lan et al. 2020)."""
    return [
        *(
            entry
            for entry in _transformer_fields(_MLM_BASE, _MLM_FOLLOWS)
            if entry[0] in _ENCODER_OPTIONS
        ),
        unset(
            "encoder_input_dim",
            int,
            "width of the embeddings, of tokens and of positions; where it is not the encoder's, "
            "a linear map follows them and another one precedes the output (default: "
            "--encoder-embed-dim)",
        ),
        switch(
            "share_encoder_layers",
            "one set of weights for all layers, but for the tables of relative "
            "positions, which --share-tables-across-layers shares (default: false)",
        ),
        unset(
            "segments",
            int,
            "embeddings of segments, BERT's and ALBERT's two: a token's is the number of </s> "
            "before it, or the last one's (default: 0, none)",
        ),
        unset(
            "max_positions",
            int,
            "number of positions that have an embedding, so the longest input; without "
            "embeddings of absolute positions there is no limit (default: the task's)",
        ),
        unset(
            "pooler_activation_fn",
            ChoiceEnum(get_available_activation_fns()),
            "activation function of classification heads (default: tanh)",
        ),
        unset("pooler_dropout", float, "dropout probability of classification heads (default: 0)"),
        flag("untie_weights_roberta", "give the output a table of its own, not the embedding's"),
        flag("load_checkpoint_heads", "register and load the classification heads of a checkpoint"),
        flag(
            "spectral_norm_classification_head",
            "apply spectral normalisation to classification heads",
        ),
    ]


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
        fallback = _CONDITIONAL.get(name, fallback)
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
    [*ENCODER_FIELDS, *DECODER_FIELDS, *MIXER_FIELDS, *_transformer_fields(_BASE, _FOLLOWS)],
)
ConvAttnLanguageModelConfig = _config(
    "ConvAttnLanguageModelConfig",
    "The options of fairseq's transformer language model and those of the token mixers.",
    [*DECODER_FIELDS, *MIXER_FIELDS, *_language_model_fields()],
)
ConvAttnMaskedLanguageModelConfig = _config(
    "ConvAttnMaskedLanguageModelConfig",
    "The options of fairseq's RoBERTa and those of the token mixers.",
    [*ENCODER_FIELDS, *MIXER_FIELDS, *_masked_language_model_fields()],
)
DEFAULT_KERNEL_SIZES = (3, 7, 15, 31)  # Wu et al. 2019, section 5.1
ENCODER_DECODER = Schema(ConvAttnConfig, _BASE, _FOLLOWS, ("encoder", "decoder"))
LANGUAGE_MODEL = Schema(ConvAttnLanguageModelConfig, _LM_BASE, _LM_FOLLOWS, ("decoder",))
MASKED_LANGUAGE_MODEL = Schema(
    ConvAttnMaskedLanguageModelConfig, _MLM_BASE, _MLM_FOLLOWS, ("encoder",)
)


_WHOLE_NUMBERS = {
    "encoder_kernel_sizes": options.whole_numbers("3,7,15,31"),
    "decoder_kernel_sizes": options.whole_numbers("3,7,15,31"),
    "adaptive_softmax_cutoff": options.whole_numbers("20000,60000, or none"),
    "adaptive_input_cutoff": options.whole_numbers("20000,60000, or none"),
}
_NUMBERS = {int: options.whole(), float: options.number(), bool: options.FLAG}
_OF_ANOTHER_KIND = {
    **_WHOLE_NUMBERS,
    "encoder_mixers": options.names("mixer", MIXERS, repeated=True),
    "decoder_mixers": options.names("mixer", MIXERS, repeated=True),
    "attention_terms": options.names("term", TERMS, repeated=False),
    "encoder_layers_to_keep": options.LAYERS,
    "decoder_layers_to_keep": options.LAYERS,
    "encoder_embed_path": options.FILE,
    "decoder_embed_path": options.FILE,
    "encoder_xformers_att_config": options.unread("no mixer is an attention of xFormers"),
    "decoder_xformers_att_config": options.unread("no mixer is an attention of xFormers"),
    "character_filters": options.FILTERS,
}


def _kind(option: dataclasses.Field) -> options.Kind:
    """What an option may be set to, before fairseq, which evaluates some text, sees it."""
    if option.name in _OF_ANOTHER_KIND:
        return _OF_ANOTHER_KIND[option.name]
    type_ = interpret_dc_type(option.type)
    if type_ in _NUMBERS:
        return _NUMBERS[type_]
    return options.choice(x.value for x in type_) if issubclass(type_, Enum) else options.SWITCH


def _check(values: dict[str, Any], schema: Schema) -> None:
    """See that every option is what it may be, whoever set it: also a checkpoint.

    Raises:
        ValueError: one is not; the message is one line and names it.
    """
    for option in dataclasses.fields(schema.config):
        value = values[option.name]
        unset = value is None or (option.name in _WHOLE_NUMBERS and value == "none")
        if option.name != "_name" and not unset:
            options.read(option.name, _kind(option), value)


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
    values.update(
        (name, value)
        for name, value in given.items()
        if value is not None and name in (*values, "criterion")
    )
    for name, value in values.items():
        if str(value).startswith("${"):
            values[name] = None
    _check(values, schema)
    positions_unset = values["no_token_positional_embeddings"] is None
    for name, value in schema.base.items():
        if values[name] is None:
            values[name] = value
    for name, source in schema.follows.items():
        if values[name] is None:
            values[name] = values[source]
    if positions_unset and all(_knows_positions(values, side) for side in schema.stacks):
        values["no_token_positional_embeddings"] = "true"
    for side in schema.stacks:
        sizes, layers = values[f"{side}_kernel_sizes"], values[f"{side}_layers"]
        if sizes is None or isinstance(sizes, tuple):
            pattern = sizes or DEFAULT_KERNEL_SIZES
            repeated = [*pattern, *pattern[-1:] * layers]
            values[f"{side}_kernel_sizes"] = repeated[: max(0, layers)]
    return Namespace(**values)


def _knows_positions(values: dict[str, Any], side: str) -> bool:
    """Whether a layer of the stack has a relative-position term."""
    terms = {
        "composite": str(values["attention_terms"]).replace(" ", "").split(","),
        "tisa": TISA_TERMS,
    }
    mixers = str(values[f"{side}_mixers"]).replace(" ", "").split(",")
    return any(term in POSITION_TERMS for mixer in mixers for term in terms.get(mixer, ()))
