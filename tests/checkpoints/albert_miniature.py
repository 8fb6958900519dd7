"""A small random ALBERT in the files of Hugging Face's transformers, and what it computes."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

import sentencepiece
import torch
import torch.nn.functional as F

SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
CONFIG = {
    **{"model_type": "albert", "vocab_size": 44, "embedding_size": 8, "hidden_size": 16},
    **{"intermediate_size": 24, "num_attention_heads": 4, "num_hidden_layers": 3},
    **{"max_position_embeddings": 40, "type_vocab_size": 2, "hidden_act": "gelu_new"},
    **{"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3},
    **{"layer_norm_eps": 1e-12, "num_hidden_groups": 1},
}
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


def _sizes() -> dict[str, tuple[int, int]]:
    """Outputs and inputs of every linear map."""
    width, table, inner = (CONFIG[f"{n}_size"] for n in ("hidden", "embedding", "intermediate"))
    attention = {f"attention.{n}": (width, width) for n in ("query", "key", "value", "dense")}
    layer = {**attention, "ffn": (inner, width), "ffn_output": (width, inner)}
    return {
        "albert.encoder.embedding_hidden_mapping_in": (width, table),
        **{f"{LAYER}.{name}": size for name, size in layer.items()},
        "albert.pooler": (width, width),
        "predictions.dense": (table, width),
    }


def write_albert(folder: Path, sentences: Iterable[str]) -> dict[str, torch.Tensor]:
    """``config.json``, ``spiece.model`` and ``pytorch_model.bin``; the weights."""
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([sentence.lower() for sentence in sentences]),
        model_prefix=str(folder / "spiece"),
        vocab_size=CONFIG["vocab_size"],
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": SPECIAL[0]},
        control_symbols=list(SPECIAL[2:]),
        user_defined_symbols=["\u25819,", "9,", "9"],
        minloglevel=2,
    )
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / 2

    weights = {}
    for name, rows in (("word", "vocab_size"), ("token_type", "type_vocab_size")):
        weights[f"albert.embeddings.{name}_embeddings.weight"] = random(CONFIG[rows], 8)
    weights["albert.embeddings.position_embeddings.weight"] = random(40, 8)
    for name, (outputs, inputs) in _sizes().items():
        weights |= {f"{name}.weight": random(outputs, inputs), f"{name}.bias": random(outputs)}
    norms = {"albert.embeddings.LayerNorm": 8, "predictions.LayerNorm": 8}
    norms |= {f"{LAYER}.{n}": 16 for n in ("attention.LayerNorm", "full_layer_layer_norm")}
    for name, width in norms.items():
        weights |= {f"{name}.weight": 1 + random(width), f"{name}.bias": random(width)}
    weights["predictions.bias"] = random(CONFIG["vocab_size"])
    weights["predictions.decoder.weight"] = weights["albert.embeddings.word_embeddings.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return weights


def albert(
    weights: dict[str, torch.Tensor], numbers: list[int], segments: list[int], eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lan et al. 2020, after BERT: the encoder's output and the logits of one input."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        parameters = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], *parameters, eps)

    def heads(name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(f"{LAYER}.attention.{name}", x).unflatten(-1, (4, 4)).transpose(0, 1)

    tables = (weights[f"albert.embeddings.{n}_embeddings.weight"] for n in ("word", "token_type"))
    x = sum(table[rows] for table, rows in zip(tables, (numbers, segments), strict=True))
    x = x + weights["albert.embeddings.position_embeddings.weight"][: len(numbers)]
    x = norm("albert.embeddings.LayerNorm", x)
    x = linear("albert.encoder.embedding_hidden_mapping_in", x)
    for _ in range(CONFIG["num_hidden_layers"]):
        q, k, v = (heads(name, x) for name in ("query", "key", "value"))
        mixed = (q @ k.transpose(1, 2) / math.sqrt(4)).softmax(-1) @ v
        mixed = linear(f"{LAYER}.attention.dense", mixed.transpose(0, 1).flatten(1))
        x = norm(f"{LAYER}.attention.LayerNorm", x + mixed)
        inner = F.gelu(linear(f"{LAYER}.ffn", x), approximate="tanh")
        x = norm(f"{LAYER}.full_layer_layer_norm", x + linear(f"{LAYER}.ffn_output", inner))
    inner = F.gelu(linear("predictions.dense", x), approximate="tanh")
    table = weights["albert.embeddings.word_embeddings.weight"]
    logits = F.linear(norm("predictions.LayerNorm", inner), table, weights["predictions.bias"])
    return x, logits
