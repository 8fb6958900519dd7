"""The architectures in tables, for docs/options.md and ``convattn architectures``."""

import dataclasses
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from fairseq.models import BaseFairseqModel

from ..mixers.config import OPTIONS
from ..spelling import flag, value_text
from .config import ENCODER_DECODER, LANGUAGE_MODEL, MASKED_LANGUAGE_MODEL, Schema, complete
from .language_model import ConvAttnLanguageModel
from .layer_mixers import option_name
from .masked_language_model import ConvAttnMaskedLanguageModel
from .presets import (
    ARCHITECTURE_NAMES,
    ENCODER_DECODER_PRESETS,
    ENCODER_DECODER_SHAPES,
    LANGUAGE_MODEL_PRESETS,
    MASKED_LM_PRESETS,
    MASKED_LM_SHAPES,
)
from .skeleton import skeleton
from .translation import ConvAttnModel

VOCABULARY = 32_768
PIECES = 30_000  # of ALBERT's and of Chang et al.'s SentencePiece models
CONVOLUTIONAL, WITH_ATTENTION = "layers (lightweight, dynamic)", "layers (others)"


class Family(NamedTuple):
    """The architectures of a base model.

    Attributes:
        schema: the model's options.
        presets: what each architecture sets.
        types: the vocabulary that the counts of parameters assume, by shape.
        build: from options and a vocabulary, the model without memory.
        columns: what the table of shapes has, from the options of lightweight convolutions and of
            attention.
    """

    schema: Schema
    presets: Mapping[str, dict]
    types: Mapping[str, int]
    build: Callable[[Namespace, int], BaseFairseqModel]
    columns: Mapping[str, Callable[[Namespace, Namespace], object]]


def _size(side: str) -> dict[str, Callable[[Namespace, Namespace], object]]:
    return {
        "width": lambda args, _: getattr(args, f"{side}_embed_dim"),
        "ffn": lambda args, _: getattr(args, f"{side}_ffn_embed_dim"),
        "heads": lambda args, _: getattr(args, f"{side}_attention_heads"),
    }


def _runs(sizes: list[int]) -> str:
    """Kernel sizes with repetitions counted, such as 15 x 2."""
    counts = {size: sizes.count(size) for size in sizes}
    return ", ".join(str(k) if n == 1 else f"{k} x {n}" for k, n in counts.items())


_DROPOUT = {
    "dropout": lambda args, _: args.dropout,
    "attention, weight dropout": lambda args, _: args.attention_dropout,
    "input dropout": lambda args, _: args.input_dropout,
}

FAMILIES = {
    "convattn": Family(
        ENCODER_DECODER,
        ENCODER_DECODER_PRESETS,
        dict.fromkeys(ENCODER_DECODER_SHAPES, VOCABULARY),
        lambda args, types: skeleton(
            ConvAttnModel, Namespace(**vars(args), share_all_embeddings=True), types
        ),
        {
            **_size("encoder"),
            CONVOLUTIONAL: lambda args, _: f"{args.encoder_layers} + {args.decoder_layers}",
            WITH_ATTENTION: lambda _, args: f"{args.encoder_layers} + {args.decoder_layers}",
            "GLU": lambda args, _: "yes" if args.encoder_glu == "true" else "no",
            **_DROPOUT,
        },
    ),
    "convattn_lm": Family(
        LANGUAGE_MODEL,
        LANGUAGE_MODEL_PRESETS,
        {"lm_tiny": VOCABULARY, "lm_wiki103": 267_744, "lm_gbw": 793_471},
        partial(skeleton, ConvAttnLanguageModel),
        {
            **_size("decoder"),
            CONVOLUTIONAL: lambda args, _: args.decoder_layers,
            WITH_ATTENTION: lambda _, args: args.decoder_layers,
            "kernel sizes": lambda args, _: _runs(args.decoder_kernel_sizes),
            **_DROPOUT,
            "adaptive input and softmax": lambda args, _: args.adaptive_softmax_cutoff or "no",
        },
    ),
    "convattn_mlm": Family(
        MASKED_LANGUAGE_MODEL,
        MASKED_LM_PRESETS,
        dict.fromkeys(MASKED_LM_SHAPES, PIECES),
        partial(skeleton, ConvAttnMaskedLanguageModel),
        {
            **_size("encoder"),
            "embedding": lambda args, _: args.encoder_input_dim,
            "layers": lambda args, _: (
                f"{args.encoder_layers}, one set of weights"
                if args.share_encoder_layers == "true"
                else args.encoder_layers
            ),
            "kernel sizes": lambda args, _: _runs(args.encoder_kernel_sizes),
            **_DROPOUT,
        },
    ),
}


def family_of(arch: str) -> Family:
    return next(family for family in FAMILIES.values() if arch in family.presets)


def preset_options(arch: str) -> str:
    """What ``--arch`` sets, as options of fairseq-train."""
    schema, presets, *_ = family_of(arch)
    preset = presets[arch]
    shown = ["weight_dropout", "input_dropout"]
    shown += [f"{side}_{option}" for option in ("glu", "kernel_sizes") for side in schema.stacks]
    mixer = preset[f"{schema.stacks[0]}_mixers"]
    unread = {
        option_name(field, option, side)
        for side in schema.stacks
        for field, option in OPTIONS.items()
        if mixer not in option.readers and option.help
    }
    names = [name for name in dict.fromkeys((*preset, *shown)) if name not in unread]
    known = {field.name for field in dataclasses.fields(schema.config)}
    args = vars(complete(Namespace(**preset), schema))
    chosen = {name: args[name] for name in names if name in known}
    return " ".join(f"{flag(name)} {value_text(x)}" for name, x in chosen.items())


def parameters(arch: str, types: int) -> int:
    """Number of parameters with a vocabulary of ``types``, shared by source, target and output."""
    family = family_of(arch)
    model = family.build(Namespace(**family.presets[arch]), types)
    return sum(p.numel() for p in model.parameters())


def table_of_shapes(family: Family) -> list[dict[str, str]]:
    """A row for each shape X of a family's architectures."""
    rows = []
    for shape, types in family.types.items():
        convolution, attention = (
            complete(Namespace(**family.presets[name.format(shape)]), family.schema)
            for name in map(ARCHITECTURE_NAMES.get, ("lightweight", "attention"))
        )
        row = {head: column(convolution, attention) for head, column in family.columns.items()}
        if len(set(family.types.values())) > 1:
            row["vocabulary"] = f"{types:,}"
        rows.append({"X": f"`{shape}`"} | {head: str(cell) for head, cell in row.items()})
    return rows


def table_of_sizes(family: Family) -> list[dict[str, str]]:
    """Million parameters of each shape, by mixer."""
    return [
        {"X": f"`{shape}`"}
        | {
            mixer: f"{parameters(name, types) / 1e6:.1f}"
            for mixer, name in zip(ARCHITECTURE_NAMES, _names(shape), strict=True)
        }
        for shape, types in family.types.items()
    ]


def _names(shape: str) -> list[str]:
    return [name.format(shape) for name in ARCHITECTURE_NAMES.values()]
