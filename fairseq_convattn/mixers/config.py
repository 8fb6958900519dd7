"""The configuration of a mixer, which doubles as the table of the mixers' options."""

import dataclasses
import numbers
import operator
from dataclasses import dataclass
from typing import Any

from fairseq.utils import get_available_activation_fns

from ..ops import TAP_NORMALIZATIONS
from ..ops.attention import BEYOND, TABLE_TERMS, TERMS
from . import conditions
from .conditions import COMPOSITE, CONVOLUTIONS
from .options import (
    FLAG,
    SWITCH,
    Option,
    choice,
    letters,
    names,
    probability,
    whole,
    whole_numbers,
)

ATTENTION = ("attention", *COMPOSITE)
TISA_TERMS = ("content", "tisa")
PROJECTIONS = {
    "linear": "W x",
    "lightweight": "a lightweight convolution of W x",
    "dynamic": "a dynamic convolution of W x",
    "separable": "W of a depthwise convolution of x",
}
VALUE_CONVOLUTIONS = {
    "none": "nothing",
    "depthwise": "a depthwise convolution of the values",
    "scaled": "the same times a learned number per head, 1 at first",
}
SHORT_CONVOLUTIONS = {
    "none": "nothing",
    "static": "a kernel per channel",
    "headwise": "the same plus a kernel per head, predicted at every position",
    "low_rank": "the same plus a kernel per channel, predicted at every position by a thin product",
}
INITIALIZATIONS = {
    "default": "PyTorch's for linear layers, as in fairseq's transformer",
    "xavier": "Xavier's, biases zero, as in the code of Wu et al. 2019; it learns more slowly",
}
PER_LAYER = "one for all layers, or a comma-separated list with one per layer"


def _listed(meanings: dict[str, str]) -> str:
    return "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())


def _row(value: Any, *args: Any, **kwargs: Any) -> Any:
    option = Option(*args, **{"default": value, **kwargs})
    return dataclasses.field(default=value, metadata={"option": option})


_SPAN = f"one of the terms {', '.join(TABLE_TERMS)}, or --beyond-span mask"
_PARAMETERS = "a term that is learned, as neither content nor alibi is"
_SHORT = "--short-convolution static, headwise or low_rank"
_CONVOLVED = "--query-key-projection, --value-projection or --value-conv"


@dataclass(frozen=True)
class MixerConfig:
    """The configuration of one layer's token mixer. Each mixer reads the fields that concern it.

    A field with an option is a row of the table: default, allowed values, help and the mixers that
    read it.

    Attributes:
        mixer: a name in the registry of :mod:`fairseq_convattn.mixers`.
        embed_dim: width of the mixer's input and output.
        num_heads: heads of the attention or of the convolution.
        causal: True in a decoder: a position sees itself and earlier ones.
        self_attention: False when keys come from elsewhere too (``--cross-self-attention``).
    """

    mixer: str
    embed_dim: int
    num_heads: int
    causal: bool
    kernel_size: int = _row(
        31,
        whole_numbers("3,7,15,31"),
        "kernel sizes of the {side}'s convolutions, {taps}; " + PER_LAYER,
        default=None,  # a stack's default has a size per layer
        default_text="3,7,15 and then 31",
        readers=CONVOLUTIONS,
        name="kernel_sizes",
        per_stack=True,
        impossible=lambda config: conditions.bad_size(config.kernel_size),
        refused=lambda config: conditions.bad_taps(config, config.kernel_size),
    )
    conv_dim: int | None = _row(
        None,
        whole(1),
        "width of the {side}'s convolutions",
        default_text="its embedding dimension",
        readers=CONVOLUTIONS,
        per_stack=True,
        impossible=conditions.bad_conv_dim,
    )
    glu: bool = _row(
        True,
        SWITCH,
        "gate the input of the {side}'s convolutions",
        readers=CONVOLUTIONS,
        per_stack=True,
    )
    weight_dropout: float = _row(
        0.0,
        probability(below_one="1 would drop every tap"),
        "DropConnect: probability of dropping a kernel weight, after normalisation",
        readers=CONVOLUTIONS,
    )
    tap_norm: str = _row(
        "softmax",
        choice(TAP_NORMALIZATIONS),
        f"normalisation of a kernel's K weights W. {_listed(TAP_NORMALIZATIONS)}",
        readers=(*CONVOLUTIONS, *COMPOSITE),
        reads=conditions.normalises,
        needs="the mixer lightweight or dynamic, or such a projection in composite attention",
        name="weight_norm",
    )
    input_dropout: float = _row(
        0.0,
        probability(),
        "dropout probability of the convolutions' input",
        readers=CONVOLUTIONS,
    )
    conv_bias: bool = _row(
        False, FLAG, "add a learned bias after every convolution", readers=CONVOLUTIONS
    )
    renorm_padding: bool = _row(
        False,
        FLAG,
        "normalise kernels over the positions that are tokens, so that no weight is "
        "lost at the edges and at padding",
        readers=CONVOLUTIONS,
        impossible=conditions.bad_renormalization,
    )
    attention_terms: tuple[str, ...] = _row(
        ("content", "fixed", "query"),
        names("term", TERMS, repeated=False),
        "terms that are summed into the scores of composite attention, comma-separated. "
        f"{_listed(TERMS)}",
        readers=COMPOSITE,
        needs="the mixer composite; those of tisa are content,tisa",
        fixed={"tisa": TISA_TERMS},
    )
    attention_span: int = _row(
        8,
        whole(0),
        "distance n up to which the fixed, query and key terms have an entry of their own",
        readers=COMPOSITE,
        reads=conditions.has_span_or_its_taps,
        needs=_SPAN,
        refused=conditions.bad_span,
    )
    beyond_span: str = _row(
        "clip",
        choice(BEYOND),
        "beyond --attention-span n: use the entry of n (clip), no entry (zero), or do not "
        "attend (mask: a window)",
        readers=COMPOSITE,
        reads=conditions.has_span,
        needs=_SPAN,
        refused=conditions.bad_beyond,
    )
    tisa_kernels: int = _row(
        5,
        whole(1),
        "radial kernels of the tisa term per head",
        readers=COMPOSITE,
        reads=lambda config: "tisa" in config.attention_terms,
        needs="the term tisa",
    )
    share_tables_across_heads: bool | None = _row(
        None,
        SWITCH,
        "one table of every term for all heads of a layer (default, as in "
        "the papers: true for query and key, false for the others)",
        readers=COMPOSITE,
        reads=conditions.has_parameters,
        needs=_PARAMETERS,
    )
    share_tables_across_layers: bool = _row(
        False,
        SWITCH,
        "one set of tables for all layers of a stack",
        readers=COMPOSITE,
        reads=conditions.has_parameters,
        needs=_PARAMETERS,
    )
    query_key_projection: str = _row(
        "linear",
        choice(PROJECTIONS),
        f"how composite attention projects its input x to queries and keys. {_listed(PROJECTIONS)}",
        readers=COMPOSITE,
        refused=conditions.bad_query_key_projection,
    )
    value_projection: str = _row(
        "linear",
        choice(PROJECTIONS),
        "how composite attention projects its input to values; as --query-key-projection",
        readers=COMPOSITE,
    )
    projection_kernel_size: int | None = _row(
        None,
        whole(1),
        "kernel size of the projection convolutions and of --value-conv, odd with an encoder",
        default_text="2 n + 1 in an encoder, n + 1 in a decoder, with --attention-span n",
        readers=COMPOSITE,
        reads=conditions.convolves,
        needs=_CONVOLVED,
        refused=lambda config: conditions.bad_taps(config, config.projection_taps),
    )
    projection_activation: str = _row(
        "linear",
        choice(get_available_activation_fns()),
        "activation in convolved projections: after a lightweight or dynamic convolution, "
        "between a depthwise one and W",
        default_text="linear, which is none",
        readers=COMPOSITE,
        refused=conditions.bad_activation,
    )
    convolved_heads: str = _row(
        "all",
        choice(("all", "half")),
        "heads whose projections are convolved; half: the other half are linear",
        readers=COMPOSITE,
        impossible=conditions.bad_halves,
        refused=conditions.bad_convolved_heads,
    )
    value_conv: str = _row(
        "none",
        choice(VALUE_CONVOLUTIONS),
        f"what is added to attention's output. {_listed(VALUE_CONVOLUTIONS)}",
        readers=COMPOSITE,
    )
    attention_dropout: float = _row(
        0.0, probability(), readers=ATTENTION, impossible=conditions.bad_attention_dropout
    )
    short_convolution: str = _row(
        "none",
        choice(SHORT_CONVOLUTIONS),
        "apply a short residual convolution after some of a layer's linear maps. "
        f"{_listed(SHORT_CONVOLUTIONS)}",
        readers=ATTENTION,
        impossible=conditions.bad_short_convolution,
    )
    short_convolution_on: str = _row(
        "qkv",
        letters("qkvo12"),
        "linear maps followed by a short convolution: any of q, k, v, o (attention's), 1 and 2 "
        "(the feed-forward block's)",
        readers=ATTENTION,
        reads=lambda config: config.short_convolution != "none",
        needs=_SHORT,
        impossible=conditions.bad_short_convolution_on,
    )
    short_convolution_taps: int = _row(
        4,
        whole(1),
        "kernel size of the short convolutions",
        readers=ATTENTION,
        reads=lambda config: config.short_convolution != "none",
        needs=_SHORT,
    )
    short_convolution_rank: int = _row(
        15,
        whole(1),
        "rank of the predicted kernels; the static kernel is not counted",
        readers=ATTENTION,
        reads=lambda config: config.short_convolution == "low_rank",
        needs="--short-convolution low_rank",
    )
    short_convolution_window: str = _row(
        "centred",
        choice(("centred", "causal")),
        "window in an encoder: both sides (centred) or the past only (causal)",
        readers=ATTENTION,
        reads=lambda config: not config.causal and config.short_convolution != "none",
        needs=f"an encoder with {_SHORT}",
    )
    initialization: str = _row(
        "default",
        choice(INITIALIZATIONS),
        "initial values of the feed-forward layers and of the convolutions' projections. "
        f"{_listed(INITIALIZATIONS)}",
        readers=(*CONVOLUTIONS, *ATTENTION),
    )
    self_attention: bool = True

    @property
    def span_taps(self) -> int:
        """Taps of a table over the distances up to ``attention_span``."""
        return self.attention_span + 1 if self.causal else 2 * self.attention_span + 1

    @property
    def short_convolved(self) -> str:
        """The letters of the linear maps that a short convolution follows."""
        reads = may_read(self.mixer, OPTIONS["short_convolution"])
        return self.short_convolution_on if reads and self.short_convolution != "none" else ""

    @property
    def projection_taps(self) -> int:
        """Taps of the convolutions of projections and of values."""
        return self.projection_kernel_size or self.span_taps


def check(config: MixerConfig) -> None:
    """Check the sizes and the values of the fields that the config's mixer reads.

    Raises:
        ValueError: one is not allowed; the message is one line and names it.
    """
    for name in ("embed_dim", "num_heads"):
        if reason := conditions.bad_size(getattr(config, name)):
            raise ValueError(f"{name}: {reason}")
    if config.embed_dim % config.num_heads:
        reason = f"{config.num_heads} heads do not divide the width {config.embed_dim}"
        raise ValueError(f"num_heads: {reason}")
    read = {field: option for field, option in OPTIONS.items() if config.mixer in option.readers}
    for field, option in read.items():
        value = getattr(config, field)
        if value is None and getattr(MixerConfig, field) is None:
            continue
        try:
            option.kind.read(_as_option(value, option))
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None
    for field, option in read.items():
        if reason := option.impossible(config):
            raise ValueError(f"{field}: {reason}")


def _as_option(value: Any, option: Option) -> Any:
    """A value of Python as the option's kind reads it."""
    if option.kind in (SWITCH, FLAG) and not isinstance(value, bool):
        raise ValueError(f"must be True or False, not {value!r}")
    if isinstance(option.default, tuple):
        is_sequence = isinstance(value, tuple | list)
        if not (is_sequence and all(isinstance(name, str) for name in value)):
            raise ValueError(f"must be a tuple of names, not {value!r}")
        return ",".join(value)
    whole_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return operator.index(value) if whole_number else value


OPTIONS: dict[str, Option] = {
    field.name: field.metadata["option"]
    for field in dataclasses.fields(MixerConfig)
    if "option" in field.metadata
}
_KNOWN = {mixer for option in OPTIONS.values() for mixer in option.readers}


def fixed_options(mixer: str) -> dict[str, Any]:
    """The options that a mixer fixes, by field."""
    return {
        field: option.fixed[mixer] for field, option in OPTIONS.items() if mixer in option.fixed
    }


def may_read(mixer: str, option: Option) -> bool:
    """Whether a mixer reads an option; a mixer that no row names may read any option."""
    return mixer in option.readers or mixer not in _KNOWN
