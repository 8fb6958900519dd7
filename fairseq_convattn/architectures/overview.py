"""The architectures in a table, for README and ``python -m fairseq_convattn``."""

from argparse import Namespace

from .config import complete
from .presets import ARCHITECTURE_NAMES, ENCODER_DECODER_PRESETS, ENCODER_DECODER_SHAPES
from .skeleton import skeleton

VOCABULARY = 32_768


def parameters(arch: str) -> int:
    """Parameters of an architecture with one embedding table of ``VOCABULARY`` types."""
    args = Namespace(share_all_embeddings=True, **ENCODER_DECODER_PRESETS[arch])
    return sum(p.numel() for p in skeleton(args, VOCABULARY, VOCABULARY).parameters())


def architecture_table() -> str:
    """All architectures as a Markdown table."""
    mixers = list(ARCHITECTURE_NAMES)
    rows = [
        "| X | width / ffn / heads | layers (attention) | GLU | dropout / attention, weight "
        "/ input | million parameters: " + " / ".join(mixers) + " |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for shape in ENCODER_DECODER_SHAPES:
        names = [ARCHITECTURE_NAMES[mixer].format(shape) for mixer in mixers]
        sizes = " / ".join(f"{parameters(name) / 1e6:.1f}" for name in names)
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
