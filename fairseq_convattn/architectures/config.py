"""The flat configurations of ``convattn``, ``convattn_lm`` and ``convattn_mlm`` models.

fairseq's transformer has a nested configuration whose defaults win over ``--arch``. These
are flat, and every field that a preset may set defaults to None: on the command line
and under hydra alike an explicit value wins over the preset, the preset over the base.
"""

import dataclasses
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, make_dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import DictConfig, OmegaConf

from ..mixers import MixerConfig
from ..mixers.config import COMPOSITE
from ..mixers.options import FLAG, SWITCH, Kind, Option, read
from ..ops.attention import POSITION_TERMS
from . import checks, fairseq_options
from .layer_mixers import kept_layers, layer_mixers
from .options import MASKED_LANGUAGE_MODEL_OPTIONS, mixer_options
from .presets import Repeated


class Schema(NamedTuple):
    """A configuration class, and the values of its unset fields.

    Attributes:
        config: the dataclass.
        base: defaults of the fields that presets may set.
        follows: fields that default to the value of another field.
        stacks: ``encoder`` and ``decoder``, or one of them.
        kinds: the allowed values of each field.
        check: raises ValueError, in one line, of options that cannot work together.
    """

    config: type[FairseqDataclass]
    base: dict[str, Any]
    follows: dict[str, str]
    stacks: tuple[str, ...]
    kinds: dict[str, Kind]
    check: Callable[[Namespace], None]


class Configuration(NamedTuple):
    """A model's description, with every field checked.

    Attributes:
        stored: as the command line, hydra and checkpoints have it; None, where another part
            of fairseq's configuration has the value.
        options: the parsed values; ``encoder_mixers`` and ``decoder_mixers`` have the
            :class:`MixerConfig` of every layer.
    """

    stored: dict[str, Any]
    options: Namespace


_Entry = tuple[tuple, Kind]  # a field as make_dataclass takes it, and its values


def _ours(options: Mapping[str, Option]) -> list[_Entry]:
    entries = []
    for name, option in options.items():
        kind, metadata = option.kind, {"help": option.text()}
        type_, default = kind.annotation, None
        if type_ is not Any:
            type_ = Optional[type_]
        if kind is FLAG:
            type_, default = bool, False
        if kind is SWITCH:
            metadata["argparse_const"] = "true"
        entries.append(((name, type_, field(default=default, metadata=metadata)), kind))
    return entries


def _fairseqs(
    options: Iterable[dataclasses.Field], base: dict[str, Any], follows: dict[str, str]
) -> list[_Entry]:
    return [
        (fairseq_options.our_field(option, base, follows), fairseq_options.kind_of(option, base))
        for option in options
        if not option.name.endswith("_name")
    ]


def _schema(
    name: str,
    doc: str,
    stacks: tuple[str, ...],
    theirs: Iterable[dataclasses.Field],
    base: dict[str, Any],
    follows: dict[str, str],
    check: Callable[[Namespace], None],
    own: Mapping[str, Option] = MappingProxyType({}),
) -> Schema:
    mixers = mixer_options(stacks)
    entries = [*_ours(mixers), *_fairseqs(theirs, base, follows), *_ours(own)]
    config = make_dataclass(
        name,
        [entry for entry, _ in entries],
        bases=(FairseqDataclass,),
        namespace={"__doc__": doc, "__module__": __name__},
    )
    own_base = {
        name: option.stored()
        for name, option in {**mixers, **own}.items()
        if option.default is not None and option.kind is not FLAG
    }
    kinds = {entry[0]: kind for entry, kind in entries}
    return Schema(config, own_base | base, follows, stacks, kinds, check)


ENCODER_DECODER = _schema(
    "ConvAttnConfig",
    "fairseq's transformer options and those of the token mixers.",
    ("encoder", "decoder"),
    fairseq_options.transformer_options(),
    fairseq_options.ENCODER_DECODER_BASE,
    fairseq_options.ENCODER_DECODER_FOLLOWS,
    checks.encoder_decoder,
)
LANGUAGE_MODEL = _schema(
    "ConvAttnLanguageModelConfig",
    "The options of fairseq's transformer language model and those of the token mixers.",
    ("decoder",),
    dataclasses.fields(TransformerLanguageModelConfig),
    fairseq_options.LANGUAGE_MODEL_BASE,
    fairseq_options.LANGUAGE_MODEL_FOLLOWS,
    checks.language_model,
)
MASKED_LANGUAGE_MODEL = _schema(
    "ConvAttnMaskedLanguageModelConfig",
    "The options of fairseq's RoBERTa, which has them on its command line alone, of ALBERT "
    "(Lan et al. 2020) and of the token mixers.",
    ("encoder",),
    fairseq_options.roberta_options(),
    fairseq_options.MASKED_LANGUAGE_MODEL_BASE,
    fairseq_options.MASKED_LANGUAGE_MODEL_FOLLOWS,
    checks.masked_language_model,
    MASKED_LANGUAGE_MODEL_OPTIONS,
)
DEFAULT_KERNEL_SIZES = (3, 7, 15, 31)  # Wu et al. 2019, section 5.1


def complete(
    cfg: Namespace | DictConfig, schema: Schema = ENCODER_DECODER, preset: dict | None = None
) -> Namespace:
    """A copy of ``cfg`` in which every field has its value, as :func:`configure` stores it."""
    return Namespace(**configure(cfg, schema, preset).stored)


def configure(
    cfg: Namespace | DictConfig, schema: Schema, preset: dict | None = None
) -> Configuration:
    """Complete and check a configuration, whether a user or a checkpoint set it.

    fairseq evaluates the text of some options, so it must see only checked ones.

    Args:
        cfg: a flat configuration; entries that are not fields of the model are ignored.
        preset: values of fields that ``cfg`` leaves unset; they precede the base.

    Raises:
        ValueError: an option cannot work; the message is one line and names it.
    """
    stored = {option.name: option.default for option in dataclasses.fields(schema.config)}
    own = {name: value for name, value in given_values(cfg).items() if name in stored}
    stored = {
        name: None if str(value).startswith("${") else value
        for name, value in (stored | (preset or {}) | own).items()
    }
    positions_unset = stored["no_token_positional_embeddings"] is None
    _fill(stored, schema)
    options = Namespace(**stored)
    # so that an error names a user's option first
    for name in sorted(schema.kinds, key=lambda name: name not in own):
        if stored[name] is not None:
            setattr(options, name, read(name, schema.kinds[name], stored[name]))
    for side in schema.stacks:
        _repeat_kernel_sizes(stored, options, side)
    stacks = {side: layer_mixers(options, side) for side in schema.stacks}
    if positions_unset and all(_knows_positions(mixers) for mixers in stacks.values()):
        stored["no_token_positional_embeddings"] = "true"
        options.no_token_positional_embeddings = True
    for side, mixers in stacks.items():
        kept = [mixers[layer] for layer in kept_layers(options, side)]
        setattr(options, f"{side}_mixers", kept)
    schema.check(options)
    return Configuration(stored, options)


def given_values(cfg: Namespace | DictConfig) -> dict[str, Any]:
    """The values in ``cfg`` that are not None, by name."""
    values = (
        OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
        if isinstance(cfg, DictConfig)
        else vars(cfg)
    )
    return {name: value for name, value in values.items() if value is not None}


def _fill(stored: dict[str, Any], schema: Schema) -> None:
    for name, value in schema.base.items():
        if stored[name] is None:
            stored[name] = value
    for name, source in schema.follows.items():
        if stored[name] is None:
            stored[name] = stored[source]


def _repeat_kernel_sizes(stored: dict[str, Any], options: Namespace, side: str) -> None:
    name, layers = f"{side}_kernel_sizes", getattr(options, f"{side}_layers")
    if stored[name] is None or isinstance(stored[name], Repeated):
        pattern = stored[name] or DEFAULT_KERNEL_SIZES
        stored[name] = [*pattern, *pattern[-1:] * layers][:layers]
        setattr(options, name, stored[name])


def _knows_positions(mixers: list[MixerConfig]) -> bool:
    """Whether a layer of the unpruned stack has a relative-position term.

    If so, the layers that pruning keeps were trained without absolute positions.
    """
    return any(
        mixer.mixer in COMPOSITE and not set(POSITION_TERMS).isdisjoint(mixer.attention_terms)
        for mixer in mixers
    )
