"""ALBERT (Lan et al. 2020) as Hugging Face's transformers stores it, as one of our models.

Wennberg and Henter (2021) start from the published weights: they add translation-invariant terms to
the attention and fine-tune it.
"""

import json
import re
import shlex
import shutil
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from fairseq.data import Dictionary
from torch import Tensor

from ..architectures.config import MASKED_LANGUAGE_MODEL, complete
from ..architectures.masked_language_model import ConvAttnMaskedLanguageModel
from ..architectures.presets import ARCHITECTURE_NAMES, MASKED_LM_PRESETS
from ..command_lines import one_line_errors
from ..durable import appearing, require_new
from .checks import CheckpointError, check_finite, naming
from .files import plain_configuration, read_weights, save_with_digest

MIXERS = ("attention", "composite", "tisa")
"""Mixers that have the projections of attention."""

_MODEL = "convattn_mlm"
_ACTIVATIONS = {"gelu_new": "gelu_accurate", "gelu": "gelu", "relu": "relu"}
_SIZES = (
    *("hidden_size", "embedding_size", "intermediate_size", "num_attention_heads"),
    *("num_hidden_layers", "max_position_embeddings", "type_vocab_size"),
)
_DROPOUTS = {  # transformers' defaults, as below
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
}
_DEFAULTS = {
    **_DROPOUTS,
    **dict.fromkeys(("num_hidden_groups", "inner_group_num"), 1),
    "position_embedding_type": "absolute",
}
_SPECIAL = {"<s>": "[CLS]", "<pad>": "<pad>", "</s>": "[SEP]", "<unk>": "<unk>", "<mask>": "[MASK]"}

_ENCODER = "encoder.sentence_encoder"
_BY_PIECE = {  # ours: transformers'
    f"{_ENCODER}.embed_tokens.weight": "albert.embeddings.word_embeddings.weight",
    "encoder.lm_head.weight": "albert.embeddings.word_embeddings.weight",
    "encoder.lm_head.bias": "predictions.bias",
}
_NAMES = {
    f"{_ENCODER}.embed_positions": "albert.embeddings.position_embeddings",
    f"{_ENCODER}.layernorm_embedding": "albert.embeddings.LayerNorm",
    f"{_ENCODER}.embed_segments": "albert.embeddings.token_type_embeddings",
    f"{_ENCODER}.project_embedding": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.lm_head.dense": "predictions.dense",
    "encoder.lm_head.layer_norm": "predictions.LayerNorm",
    "pooler": "albert.pooler",
}
_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
_LAYER_NAMES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.dense",
    "self_attn_layer_norm": "attention.LayerNorm",
    "fc1": "ffn",
    "fc2": "ffn_output",
    "final_layer_norm": "full_layer_layer_norm",
}
_NEW = re.compile(rf"{_ENCODER}\.(version|layers\.\d+\.self_attn\.terms\..+)")
_DESCRIPTION = """\
Turn ALBERT, as Hugging Face's transformers stores it, into a model of this plugin.

NEW gets checkpoint.pt, dict.txt and sentencepiece.bpe.model. On GLUE it is fine-tuned by
  convattn prepare glue --sentencepiece NEW/sentencepiece.bpe.model \\
    --dictionary NEW/dict.txt --output NEW_glue
  convattn glue finetune TASK NEW/checkpoint.pt --data NEW_glue/bin
"""


def main(argv: Sequence[str] | None = None) -> None:
    """The command that converts; its arguments are the process's unless given."""
    parser = ArgumentParser(description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "old",
        type=Path,
        metavar="OLD",
        help="folder with config.json, spiece.model and pytorch_model.bin or model.safetensors, "
        "as albert-base-v2",
    )
    parser.add_argument("new", type=Path, metavar="NEW", help="folder to write; it must not exist")
    parser.add_argument(
        "--mixer",
        choices=MIXERS,
        default="tisa",
        help="what ALBERT's attention becomes: itself, or with new terms for positions "
        "(default: tisa)",
    )
    parser.add_argument(
        "--keep-positions",
        action="store_true",
        help="keep its embeddings of positions too (with attention they always stay)",
    )
    arguments = parser.parse_args(argv)
    with one_line_errors(CheckpointError):
        convert_albert(arguments.old, arguments.new, arguments.mixer, arguments.keep_positions)
    new = shlex.quote(str(arguments.new))
    print(
        f"wrote {new}\nto fine-tune it: convattn prepare glue --sentencepiece "
        f"{new}/sentencepiece.bpe.model --dictionary {new}/dict.txt --output {new}_glue; "
        f"convattn glue finetune RTE {new}/checkpoint.pt --data {new}_glue/bin"
    )


def convert_albert(folder: Path, output: Path, mixer: str, keep_positions: bool) -> None:
    """Write ``checkpoint.pt``, ``dict.txt`` and ``sentencepiece.bpe.model`` into a new folder.

    With ``attention`` the outputs are ALBERT's, except that fairseq's layer norms add 1e-5 to
    variances and ALBERT's 1e-12. The position terms of other mixers are initialised as in any new
    model. In fine-tuning, fairseq applies a second dropout to the classifier's inputs, before the
    pooler.

    Args:
        folder: has ``config.json``, ``spiece.model`` and ``pytorch_model.bin`` or
            ``model.safetensors``.
        mixer: one of ``MIXERS``.
        keep_positions: whether to keep ALBERT's position embeddings; ``attention`` always does.

    Raises:
        CheckpointError: ``folder`` has no such model.
        FileExistsError: ``output`` is there already.
        FileNotFoundError: its directory is not there.
    """
    require_new(output)
    config = _configuration(folder)
    weights = _weights(folder)
    pieces = _pieces(folder)
    dictionary = _dictionary(pieces)
    args = _options(config, mixer, keep_positions or mixer == "attention")
    state = _state(weights, pieces, dictionary, args)
    with appearing(output) as written:
        written.mkdir()
        save_with_digest(_checkpoint(state, args, mixer), written / "checkpoint.pt")
        _save_dictionary(dictionary, written / "dict.txt")
        shutil.copyfile(folder / "spiece.model", written / "sentencepiece.bpe.model")


def _checkpoint(state: dict[str, Tensor], args: Namespace, mixer: str) -> dict[str, Any]:
    """The checkpoint that fairseq's trainer would write before its first update."""
    cfg = plain_configuration("masked_lm", _MODEL, "masked_lm")
    cfg["task"]["tokens_per_sample"] = args.max_positions
    cfg["model"] = {**vars(args), "_name": _MODEL, "arch": _architecture(mixer)}
    return {
        "args": None,
        "cfg": cfg,
        "model": state,
        "optimizer_history": [{"lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: no config.json that can be read ({error})") from None
    if not isinstance(config, dict) or config.get("model_type") != "albert":
        raise CheckpointError(f"{folder}/config.json is not of an ALBERT model")
    config = _DEFAULTS | config
    for wrong in _unfit(config):
        raise CheckpointError(f"{folder}/config.json: {wrong}")
    return config


def _unfit(config: dict[str, Any]) -> Iterator[str]:
    """Settings of an ALBERT configuration that our model does not support, in words."""
    for name in _SIZES:
        if type(config.get(name)) is not int or config[name] < 1:
            yield f"{name} is {config.get(name)}, not a size"
    for name in _DROPOUTS:
        if type(config[name]) not in (int, float) or not 0 <= config[name] <= 1:
            yield f"{name} is {config[name]}, not a probability"
    for name in ("num_hidden_groups", "inner_group_num"):
        if config[name] != 1:
            yield f"{name} is {config[name]}; all layers must share one"
    if config["position_embedding_type"] != "absolute":
        yield f"its positions are {config['position_embedding_type']}"
    if config["hidden_size"] % config["num_attention_heads"]:
        yield f"{config['num_attention_heads']} heads do not divide {config['hidden_size']}"
    if config["embedding_size"] == config["hidden_size"]:
        yield "embeddings as wide as the model have no map between them"
    if str(config.get("hidden_act")) not in _ACTIVATIONS:
        yield f"hidden_act {config.get('hidden_act')} is none of {', '.join(_ACTIVATIONS)}"


def _weights(folder: Path) -> Mapping[str, Tensor]:
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if pickled.is_file() or not safe.is_file():
        return read_weights(pickled)
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise CheckpointError(f"{safe} needs safetensors: pip install safetensors") from None
    try:
        weights = load_file(safe)
    except SafetensorError as error:
        raise CheckpointError(f"{safe}: {error}") from None
    with naming(safe):
        check_finite(weights)
    return weights


def _pieces(folder: Path) -> list[str]:
    """The pieces in the order of the embedding's rows."""
    path = folder / "spiece.model"
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError):
        raise CheckpointError(f"{path} is not a SentencePiece model") from None
    found = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    if missing := set(_SPECIAL.values()) - set(found):
        raise CheckpointError(f"{path} has no {', '.join(sorted(missing))}: it is not ALBERT's")
    return found


def _dictionary(pieces: list[str]) -> Dictionary:
    dictionary = Dictionary()
    for piece in pieces:
        if piece not in _SPECIAL.values():
            dictionary.add_symbol(piece)
    dictionary.add_symbol("<mask>")  # last, as fairseq's tasks add it
    return dictionary


def _save_dictionary(dictionary: Dictionary, path: Path) -> None:
    own = dictionary.symbols[dictionary.nspecial : -1]
    path.write_text("".join(f"{symbol} 1\n" for symbol in own), encoding="utf-8")


def _options(config: dict[str, Any], mixer: str, positions: bool) -> Namespace:
    shape = {
        "encoder_embed_dim": config["hidden_size"],
        "encoder_input_dim": config["embedding_size"],
        "encoder_ffn_embed_dim": config["intermediate_size"],
        "encoder_attention_heads": config["num_attention_heads"],
        "encoder_layers": config["num_hidden_layers"],
        "activation_fn": _ACTIVATIONS[config["hidden_act"]],
        "dropout": config["hidden_dropout_prob"],
        "attention_dropout": config["attention_probs_dropout_prob"],
        "pooler_dropout": config["classifier_dropout_prob"],
        "max_positions": config["max_position_embeddings"],
        "segments": config["type_vocab_size"],
        "no_token_positional_embeddings": "false" if positions else "true",
    }
    preset = MASKED_LM_PRESETS[_architecture(mixer)]
    return complete(Namespace(**shape), MASKED_LANGUAGE_MODEL, preset)


def _architecture(mixer: str) -> str:
    return ARCHITECTURE_NAMES[mixer].format("albert_base")


def _state(
    weights: Mapping[str, Tensor], pieces: list[str], dictionary: Dictionary, args: Namespace
) -> dict[str, Tensor]:
    """The state dict of our model, with ALBERT's pooler if it has one. New parameters are
    initialised with seed 1."""
    task = Namespace(source_dictionary=dictionary, max_positions=lambda: args.max_positions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        state = ConvAttnMaskedLanguageModel.build_model(args, task).state_dict()
    numbers = {piece: number for number, piece in enumerate(pieces)}
    rows = [numbers[_SPECIAL.get(symbol, symbol)] for symbol in dictionary.symbols]
    width = args.encoder_embed_dim
    shapes = {key: value.shape for key, value in state.items() if not _NEW.fullmatch(key)}
    if _theirs("pooler.weight") in weights:
        shapes |= {"pooler.weight": torch.Size([width, width]), "pooler.bias": torch.Size([width])}
    for key, shape in shapes.items():
        state[key] = _converted(key, weights, rows)
        if state[key].shape != shape:
            raise CheckpointError(f"{_theirs(key)} is {list(state[key].shape)}, not {list(shape)}")
    return state


def _converted(key: str, weights: Mapping[str, Tensor], rows: list[int]) -> Tensor:
    name = _theirs(key)
    if name not in weights:
        raise CheckpointError(
            f"the weights have no {name}; save them from transformers' AlbertForMaskedLM or "
            "AlbertForPreTraining"
        )
    value = weights[name].float()
    if key in _BY_PIECE:
        if len(value) != len(rows):
            raise CheckpointError(f"{name} has {len(value):,} rows for {len(rows):,} pieces")
        return value[rows]
    if key == f"{_ENCODER}.embed_positions.weight":
        return torch.cat([torch.zeros(2, value.size(1)), value])  # fairseq's first is number 2
    return value


def _theirs(key: str) -> str:
    """The name in transformers of one of our parameters."""
    if key in _BY_PIECE:
        return _BY_PIECE[key]
    module, _, parameter = key.rpartition(".")
    layer = re.fullmatch(rf"{_ENCODER}\.layers\.\d+\.(.+)", module)
    name = f"{_LAYER}.{_LAYER_NAMES[layer[1]]}" if layer else _NAMES[module]
    return f"{name}.{parameter}"


if __name__ == "__main__":
    main()
