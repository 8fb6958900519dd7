"""Checkpoints of random models."""

from argparse import Namespace
from pathlib import Path

import torch
from fairseq.data import Dictionary

from fairseq_convattn.analysis.checkpoint import analysis
from fairseq_convattn.architectures import ConvAttnMaskedLanguageModel, ConvAttnModel
from fairseq_convattn.architectures.config import (
    ENCODER_DECODER,
    MASKED_LANGUAGE_MODEL,
    Schema,
    complete,
)

TRANSLATION = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
MASKED_LM = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "max_positions": 40,
}


def build(model_class, schema: Schema, **given) -> tuple:
    """A model of ours, every parameter drawn anew, and its options as checkpoints have them."""
    dictionary = Dictionary()
    for i in range(9):
        dictionary.add_symbol(str(i))
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    options = complete(Namespace(**given), schema)
    model = model_class.build_model(options, task).double().eval()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:  # whose padding stays zero
            torch.nn.init.normal_(parameter, generator=generator)
    return model, vars(options)


def save(path: Path, model, options: dict, updates: int | None = 7) -> Path:
    history = [{"num_updates": updates}] if updates is not None else []
    state = model if isinstance(model, dict) else model.state_dict()
    torch.save(
        {"args": None, "cfg": {"model": options}, "model": state, "optimizer_history": history},
        path,
    )
    return path


def translation(path: Path, **given) -> tuple:
    model, options = build(ConvAttnModel, ENCODER_DECODER, **TRANSLATION, **given)
    return model, save(path / "checkpoint.pt", model, options)


def masked_lm(path: Path, **given) -> tuple:
    given = {**MASKED_LM, **given}
    model, options = build(ConvAttnMaskedLanguageModel, MASKED_LANGUAGE_MODEL, **given)
    return model, save(path / "checkpoint.pt", model, options)


def only_stack(checkpoint: Path) -> dict:
    (stack,) = analysis(checkpoint, 128)[0]["stacks"].values()
    return stack
