"""The options of the token mixers, as dataclass fields."""

from dataclasses import field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.utils import get_available_activation_fns

from ..mixers import MIXERS
from ..mixers.injection import PROJECTIONS, VALUE_CONVOLUTIONS
from ..ops import TAP_NORMALIZATIONS
from ..ops.attention import BEYOND, TERMS

_PER_LAYER = "one for all layers, or a comma-separated list with one per layer"


def _listed(meanings: dict[str, str]) -> str:
    return "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items())


def unset(name: str, type_: Any, help_: str) -> tuple:
    """A field that presets may set."""
    type_ = type_ if type_ is Any else Optional[type_]
    return name, type_, field(default=None, metadata={"help": help_})


def switch(name: str, help_: str) -> tuple:
    """A field that is true or false, and true where its option has no value."""
    metadata = {"help": f"true or false: {help_}", "argparse_const": "true"}
    return name, Optional[str], field(default=None, metadata=metadata)


def flag(name: str, help_: str) -> tuple:
    """A field that is off unless the user sets it."""
    return name, bool, field(default=False, metadata={"help": help_})


def _side_fields(side: str, kernel: str) -> list[tuple]:
    return [
        unset(
            f"{side}_mixers",
            str,
            f"token mixers of the {side}: {', '.join(MIXERS)}; {_PER_LAYER} (default: dynamic)",
        ),
        unset(
            f"{side}_kernel_sizes",
            Any,
            f"taps of the {side}'s convolutions, {kernel}; {_PER_LAYER} "
            "(default: 3,7,15 and then 31)",
        ),
        unset(
            f"{side}_conv_dim",
            int,
            f"width of the {side}'s convolutions (default: its embedding dimension)",
        ),
        unset(
            f"{side}_glu",
            str,
            f"true or false: gate the input of the {side}'s convolutions (default: true)",
        ),
    ]


ENCODER_FIELDS = _side_fields("encoder", "odd (the kernel is centred)")
DECODER_FIELDS = _side_fields("decoder", "any number >= 1 (the kernel is causal)")
MIXER_FIELDS = [
    unset(
        "weight_dropout",
        float,
        "DropConnect: probability of dropping a normalised tap (default: 0)",
    ),
    unset(
        "weight_norm",
        ChoiceEnum(list(TAP_NORMALIZATIONS)),
        "normalisation of the K taps W of a kernel. "
        f"{_listed(TAP_NORMALIZATIONS)} (default: softmax)",
    ),
    unset(
        "input_dropout",
        float,
        "dropout probability of the convolutions' input (default: 0)",
    ),
    flag("conv_bias", "add a learned bias after every convolution"),
    flag(
        "renorm_padding",
        "normalise kernels over the taps that fall on tokens, so that no weight is "
        "lost at the edges and at padding",
    ),
    unset(
        "attention_terms",
        str,
        "what the scores of composite attention are the sum of, with commas between. "
        f"{_listed(TERMS)} (default: content,fixed,query)",
    ),
    unset(
        "attention_span",
        int,
        "distance n up to which the fixed, query and key terms have an entry of their own "
        "(default: 8)",
    ),
    unset(
        "beyond_span",
        ChoiceEnum(list(BEYOND)),
        "beyond that distance the entry of n is used (clip) or none (zero), or nothing is "
        "seen (mask: a window) (default: clip)",
    ),
    unset("tisa_kernels", int, "radial kernels of the tisa term per head (default: 5)"),
    switch(
        "share_tables_across_heads",
        "one table of every term for all heads of a layer (default, as in "
        "the papers: true for query and key, false for the others)",
    ),
    switch(
        "share_tables_across_layers",
        "one set of tables for all layers of a stack (default: false)",
    ),
    unset(
        "query_key_projection",
        ChoiceEnum(list(PROJECTIONS)),
        "how composite attention projects its input x to queries and keys. "
        f"{_listed(PROJECTIONS)} (default: linear)",
    ),
    unset(
        "value_projection",
        ChoiceEnum(list(PROJECTIONS)),
        "how it projects its input to values; as --query-key-projection (default: linear)",
    ),
    unset(
        "projection_kernel_size",
        int,
        "taps of those convolutions and of --value-conv, odd with an encoder (default: 2 n + 1 "
        "in an encoder, n + 1 in a decoder, with --attention-span n)",
    ),
    unset(
        "projection_activation",
        ChoiceEnum(get_available_activation_fns()),
        "activation in those projections: after a lightweight or dynamic convolution, "
        "between a depthwise one and W (default: linear, none)",
    ),
    unset(
        "convolved_heads",
        ChoiceEnum(["all", "half"]),
        "heads whose projection is a convolution; half: the others' is linear (default: all)",
    ),
    unset(
        "value_conv",
        ChoiceEnum(list(VALUE_CONVOLUTIONS)),
        f"what is added to attention's output. {_listed(VALUE_CONVOLUTIONS)} (default: none)",
    ),
]
