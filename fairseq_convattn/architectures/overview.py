"""The architectures in tables, for README and ``python -m fairseq_convattn``."""

import dataclasses
from argparse import Namespace

from ..mixers.config import OPTIONS
from ..outputs import flag
from .config import ENCODER_DECODER, LANGUAGE_MODEL, MASKED_LANGUAGE_MODEL, complete
from .layer_mixers import option_name
from .presets import (
    ARCHITECTURE_NAMES,
    ENCODER_DECODER_PRESETS,
    ENCODER_DECODER_SHAPES,
    LANGUAGE_MODEL_PRESETS,
    LANGUAGE_MODEL_SHAPES,
    MASKED_LM_PRESETS,
    MASKED_LM_SHAPES,
)
from .skeleton import language_model_skeleton, masked_language_model_skeleton, skeleton

VOCABULARY = 32_768
WORDS = {"lm_tiny": VOCABULARY, "lm_wiki103": 267_744, "lm_gbw": 793_471}
PIECES = 30_000  # of ALBERT's and of Chang et al.'s SentencePiece models


def preset_options(arch: str) -> str:
    """What ``--arch`` sets, as options of fairseq-train."""
    preset, schema = next(
        (presets[arch], schema)
        for presets, schema in (
            (ENCODER_DECODER_PRESETS, ENCODER_DECODER),
            (LANGUAGE_MODEL_PRESETS, LANGUAGE_MODEL),
            (MASKED_LM_PRESETS, MASKED_LANGUAGE_MODEL),
        )
        if arch in presets
    )
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
    return " ".join(f"{flag(name)} {_text(x)}" for name, x in chosen.items())


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def parameters(arch: str, types: int = VOCABULARY) -> int:
    """Number of parameters with a vocabulary of ``types``, shared by source, target and output."""
    if arch in LANGUAGE_MODEL_PRESETS:
        model = language_model_skeleton(Namespace(**LANGUAGE_MODEL_PRESETS[arch]), types, types)
    elif arch in MASKED_LM_PRESETS:
        model = masked_language_model_skeleton(Namespace(**MASKED_LM_PRESETS[arch]), types)
    else:
        args = Namespace(share_all_embeddings=True, **ENCODER_DECODER_PRESETS[arch])
        model = skeleton(args, types, types)
    return sum(p.numel() for p in model.parameters())


def architecture_table() -> str:
    """The encoder-decoder architectures as a Markdown table."""
    rows = [
        "| X | width / ffn / heads | layers: convolutions (others) | GLU | dropout / attention, "
        f"weight / input | million parameters: {' / '.join(ARCHITECTURE_NAMES)} |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for shape in ENCODER_DECODER_SHAPES:
        names, sizes = _names_and_sizes(shape, VOCABULARY)
        args, attention = (
            complete(Namespace(**ENCODER_DECODER_PRESETS[name])) for name in (names[0], names[-1])
        )
        rows.append(
            f"| `{shape}` | {args.encoder_embed_dim} / {args.encoder_ffn_embed_dim} / "
            f"{args.encoder_attention_heads} | {args.encoder_layers} + {args.decoder_layers} "
            f"({attention.encoder_layers} + {attention.decoder_layers}) | "
            f"{'yes' if args.encoder_glu == 'true' else 'no'} | {args.dropout} / "
            f"{args.attention_dropout} / {args.input_dropout} | {sizes} |"
        )
    return "\n".join(rows)


def language_model_table() -> str:
    """The language models as a Markdown table."""
    rows = [
        "| X | width / ffn / heads | layers: convolutions (others) | kernel sizes | dropout / "
        "attention, weight / input | adaptive input and softmax | types | million parameters: "
        f"{' / '.join(ARCHITECTURE_NAMES)} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for shape in LANGUAGE_MODEL_SHAPES:
        names, sizes = _names_and_sizes(shape, WORDS[shape])
        args, attention = (
            complete(Namespace(**LANGUAGE_MODEL_PRESETS[name]), LANGUAGE_MODEL)
            for name in (names[0], names[-1])
        )
        rows.append(
            f"| `{shape}` | {args.decoder_embed_dim} / {args.decoder_ffn_embed_dim} / "
            f"{args.decoder_attention_heads} | {args.decoder_layers} ({attention.decoder_layers}) "
            f"| {_runs(args.decoder_kernel_sizes)} | {args.dropout} / {args.attention_dropout} / "
            f"{args.input_dropout} | {args.adaptive_softmax_cutoff or 'no'} | "
            f"{WORDS[shape]:,} | {sizes} |"
        )
    return "\n".join(rows)


def masked_language_model_table() -> str:
    """The masked language models as a Markdown table."""
    rows = [
        "| X | width / ffn / heads | embedding | layers | kernel sizes | dropout / attention, "
        f"weight / input | million parameters: {' / '.join(ARCHITECTURE_NAMES)} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for shape in MASKED_LM_SHAPES:
        names, sizes = _names_and_sizes(shape, PIECES)
        args = complete(Namespace(**MASKED_LM_PRESETS[names[0]]), MASKED_LANGUAGE_MODEL)
        shared = ", one set of weights" if args.share_encoder_layers == "true" else ""
        rows.append(
            f"| `{shape}` | {args.encoder_embed_dim} / {args.encoder_ffn_embed_dim} / "
            f"{args.encoder_attention_heads} | {args.encoder_input_dim} | "
            f"{args.encoder_layers}{shared} | {_runs(args.encoder_kernel_sizes)} | "
            f"{args.dropout} / {args.attention_dropout} / {args.input_dropout} | {sizes} |"
        )
    return "\n".join(rows)


def _names_and_sizes(shape: str, types: int) -> tuple[list[str], str]:
    names = [name.format(shape) for name in ARCHITECTURE_NAMES.values()]
    return names, " / ".join(f"{parameters(name, types) / 1e6:.1f}" for name in names)


def _runs(sizes: list[int]) -> str:
    """Kernel sizes with repetitions counted, such as 15 x 2."""
    counts = {size: sizes.count(size) for size in sizes}
    return ", ".join(str(k) if n == 1 else f"{k} x {n}" for k, n in counts.items())
