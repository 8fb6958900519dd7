"""Checkpoints of fairseq's ``lightconv`` models, as published in 2019, as ours.

Since October 2022 fairseq refuses its own published LightConv and DynamicConv models. A
converted one is an ordinary ``convattn`` or ``convattn_lm`` checkpoint, with the same
outputs.
"""

import ast
import dataclasses
import re
import shlex
import textwrap
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, BaseFairseqModel
from torch import Tensor, nn

from ..architectures import ConvAttnLanguageModel, ConvAttnModel
from ..architectures.config import ENCODER_DECODER, LANGUAGE_MODEL, Schema, complete, configure
from ..architectures.layer_mixers import unread
from ..architectures.skeleton import skeleton
from ..command_lines import one_line_errors
from ..durable import require_new
from ..spelling import flag, value_text
from .checks import CheckpointError, check_configuration, naming
from .files import (
    architecture_of,
    is_lightconv,
    is_ours,
    plain_configuration,
    read_any_checkpoint,
    stored_options,
    updates_of,
    write_checkpoint,
)

_RENAMED_OPTIONS = {
    "encoder_conv_type": "encoder_mixers",
    "decoder_conv_type": "decoder_mixers",
    "encoder_kernel_size_list": "encoder_kernel_sizes",
    "decoder_kernel_size_list": "decoder_kernel_sizes",
}


class _Kind(NamedTuple):
    """The present names of a kind of model, and the options that its task keeps."""

    model: str
    schema: Schema
    task: str
    task_options: tuple[str, ...]


_TRANSLATION = _Kind(
    "convattn",
    ENCODER_DECODER,
    "translation",
    ("source_lang", "target_lang", "left_pad_source", "left_pad_target", "data"),
)
_LANGUAGE_MODEL = _Kind(
    "convattn_lm",
    LANGUAGE_MODEL,
    "language_modeling",
    ("sample_break_mode", "tokens_per_sample", "output_dictionary_size", "add_bos_token", "data"),
)

_LAYER = re.compile(r"((?:encoder|decoder)\.layers\.\d+\.)(.+)")
_RENAMED_KEYS = {
    "linear1": "self_attn.in_proj",
    "linear2": "self_attn.out_proj",
    "conv.weight_linear": "self_attn.kernel_proj",
    "conv.weight": "self_attn.kernel",
    "layer_norms.0": "self_attn_layer_norm",
    "layer_norms.1": "final_layer_norm",
    "layer_norm1": "self_attn_layer_norm",
    "layer_norm2": "final_layer_norm",
    "conv_layer_norm": "self_attn_layer_norm",
}
# Placeholders, and a bias that later versions of fairseq store but never set.
_DROPPED_KEYS = re.compile(
    r"(encoder|decoder)\.version|.*(\.embed_positions\._float_tensor|\.conv\.conv_bias)"
)
# fairseq's own defaults
_LANGUAGE_MODELING = {"sample_break_mode": "none", "output_dictionary_size": -1}

_DESCRIPTION = """\
Turn a LightConv or DynamicConv checkpoint of 2019 into one of this plugin.

A translation model then decodes with
  fairseq-generate DATA --user-dir fairseq_convattn --path NEW \\
    --required-batch-size-multiple 1 --beam 5 --lenpen 0.5 --remove-bpe
and a language model scores with
  fairseq-eval-lm DATA --user-dir fairseq_convattn --path NEW --sample-break-mode eos
Both are fine-tuned with fairseq-train, --finetune-from-model NEW and the model options that
this command prints.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """The command that converts; its arguments are the process's unless given."""
    parser = ArgumentParser(description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="checkpoint that fairseq wrote, v0.6 or later")
    parser.add_argument("new", metavar="NEW", help="file to write; it must not exist")
    arguments = parser.parse_args(argv)
    with one_line_errors(CheckpointError):
        cfg = convert_checkpoint(arguments.old, arguments.new)
    print(f"wrote {arguments.new}\nto fine-tune it: {_training_options(cfg)}")


def convert_checkpoint(old: str | Path, new: str | Path) -> dict[str, Any]:
    """Write the ``convattn`` or ``convattn_lm`` checkpoint of a ``lightconv`` checkpoint.

    No code of the old file runs, and ``new`` appears complete or not at all.

    Args:
        old: a checkpoint as fairseq's trainer wrote it, v0.6 or later, any precision.
        new: the file to write; it must not exist.

    Returns:
        fairseq's configuration in the new checkpoint, with ``model`` and ``task`` complete.

    Raises:
        CheckpointError: ``old`` is not such a checkpoint, or asks for code to run.
        FileExistsError: ``new`` is there already.
        FileNotFoundError: the directory of ``new`` is not there.
    """
    require_new(new)
    state = read_any_checkpoint(old)
    with naming(old):
        state = _converted(state)
    write_checkpoint(state, new)
    return state["cfg"]


def _converted(state: dict) -> dict:
    options = _options(state)
    kind = _LANGUAGE_MODEL if options["arch"].startswith("lightconv_lm") else _TRANSLATION
    args = _model_options(options, kind, len(state["model"]))
    model = _model_state(state["model"], args, kind)
    return {
        "args": None,
        "cfg": _configuration(options, args, kind),
        "model": model,
        "optimizer_history": [{"lr_scheduler_state": {}, "num_updates": updates_of(state) or 0}],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }


def _options(state: dict) -> dict[str, Any]:
    """The options that the model was trained with, and its task's."""
    architecture = architecture_of(state)
    if architecture is None:
        raise CheckpointError("the checkpoint does not say how its model was built")
    if is_ours(architecture):
        raise CheckpointError(f"a {architecture} model in today's format: use it as it is")
    if not is_lightconv(architecture):
        raise CheckpointError(
            f"its architecture is {architecture}, not one of fairseq's lightconv models"
        )
    options = {**stored_options(state, "task"), **stored_options(state, "model")}
    if not all(isinstance(name, str) for name in options):
        raise CheckpointError("an option's name is not text")
    return {**options, "arch": architecture}


def _model_options(options: dict[str, Any], kind: _Kind, weights: int) -> Namespace:
    """The complete configuration of our model, which has so many weights; missing options get
    lightconv's defaults."""
    args = Namespace(**{name: _value(value) for name, value in options.items()})
    check_configuration({"args": args})  # now that what was quoted is not
    for name in ("encoder_layers", "decoder_layers"):
        layers = getattr(args, name, None)
        if isinstance(layers, int) and layers > weights:
            raise CheckpointError(f"its option {name} is {layers:,}, and it has {weights} weights")
    try:
        ARCH_CONFIG_REGISTRY[args.arch](args)
    except (AssertionError, AttributeError, TypeError) as error:
        raise CheckpointError(f"its options contradict each other: {error}") from error
    fields = {f.name for f in dataclasses.fields(kind.schema.config)} - {"_name"}
    known = {_RENAMED_OPTIONS.get(name, name): value for name, value in vars(args).items()}
    if kind is _LANGUAGE_MODEL:
        known["no_decoder_final_norm"] = True
    for side in kind.schema.stacks:
        known[f"{side}_embed_path"] = None
    if "character_filters" in known:
        known["character_filters"] = str(known["character_filters"])
    for name, value in kind.schema.base.items():
        if value in ("true", "false") and known.get(name) is not None:
            known[name] = "true" if known[name] else "false"
    known["weight_norm"] = "softmax" if getattr(args, "weight_softmax", True) else "none"
    known = {name: value for name, value in known.items() if name in fields}
    try:
        return complete(Namespace(**known), kind.schema)
    except ValueError as error:
        raise CheckpointError(f"its weights do not fit its options: {error}") from error


def _value(value: Any) -> Any:
    """An option's value; the file may hold lists, numbers and booleans as text."""
    if not isinstance(value, str):
        return value
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
    return list(literal) if isinstance(literal, tuple) else literal


def _model_state(old: dict[str, Tensor], args: Namespace, kind: _Kind) -> dict[str, Tensor]:
    """The state dict of our model, checked against the model that ``args`` describes."""
    for key, value in old.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"its weight {key!r} is a {type(value).__name__}, not a tensor")
    state = {
        _renamed(key): value.float() if value.is_floating_point() else value
        for key, value in old.items()
        if not _DROPPED_KEYS.fullmatch(key)
    }
    kernels = [key for key in state if key.endswith(".self_attn.kernel")]
    state.update({key: state[key].flatten(1) for key in kernels})  # [heads, 1, taps] in 2019
    version = torch.tensor([3.0])  # with an older one fairseq drops the last layer norm
    state.update({f"{side}.version": version.clone() for side in kind.schema.stacks})
    try:
        model = _skeleton(state, args, kind)
        model.upgrade_state_dict(state)
        nn.Module.load_state_dict(model, state, strict=True, assign=True)
    except Exception as error:  # fairseq raises this very class too
        reason = textwrap.shorten(str(error), 400, placeholder=" ...")
        raise CheckpointError(f"its weights do not fit its options: {reason}") from error
    return state


def _skeleton(state: dict[str, Tensor], args: Namespace, kind: _Kind) -> BaseFairseqModel:
    if kind is _TRANSLATION:
        types = (state[f"{side}.embed_tokens.weight"].size(0) for side in kind.schema.stacks)
        return skeleton(ConvAttnModel, args, *types)
    outputs = _rows(
        state,
        r"decoder\.output_projection\.weight"
        r"|decoder\.adaptive_softmax\.(head\.word_proj|head|tail\.\d+\.2)\.weight",
    )
    if "decoder.adaptive_softmax.head.weight" in state:  # which has a row for each tail too
        outputs -= sum(re.fullmatch(r".*\.tail\.\d+\.2\.weight", key) is not None for key in state)
    table = r"decoder\.embed_tokens\.(weight|embeddings\.\d+\.0\.weight)"
    inputs = outputs if args.character_embeddings else _rows(state, table)
    return skeleton(ConvAttnLanguageModel, args, inputs, outputs)


def _rows(state: dict[str, Tensor], names: str) -> int:
    return sum(value.size(0) for key, value in state.items() if re.fullmatch(names, key))


def _renamed(key: str) -> str:
    if key == "decoder.embed_out":
        return "decoder.output_projection.weight"
    layer = _LAYER.fullmatch(key)
    if layer is None:
        return key
    name, _, parameter = layer[2].rpartition(".")
    whole = _RENAMED_KEYS.get(layer[2])  # conv.weight and conv.bias are parameters
    return layer[1] + (whole or f"{_RENAMED_KEYS.get(name, name)}.{parameter}")


def _configuration(options: dict[str, Any], args: Namespace, kind: _Kind) -> dict:
    criterion = "adaptive_loss" if args.adaptive_softmax_cutoff else "cross_entropy"
    cfg = plain_configuration(kind.task, kind.model, criterion)
    cfg["task"].update(_task(options, kind))
    for name in ("max_source_positions", "max_target_positions"):
        if hasattr(args, name):
            cfg["task"][name] = getattr(args, name)
    for option in dataclasses.fields(kind.schema.config):
        if str(option.default).startswith("${"):  # kept in another part, as ${task.name}
            part, _, name = option.default[2:-1].partition(".")
            setattr(args, option.name, cfg[part][name])
    cfg["model"] = {**vars(args), "_name": kind.model}
    return cfg


def _task(options: dict[str, Any], kind: _Kind) -> dict[str, Any]:
    task = {name: options[name] for name in kind.task_options if options.get(name) is not None}
    if isinstance(task.get("data"), list):  # in v0.6
        task["data"] = ":".join(map(str, task["data"]))
    return {name: value if name == "data" else _value(value) for name, value in task.items()}


def _training_options(cfg: dict[str, Any]) -> str:
    """The fairseq-train options of a configuration that differ from the defaults."""
    model, task = cfg["model"], cfg["task"]
    schema = next(k.schema for k in (_TRANSLATION, _LANGUAGE_MODEL) if k.model == model["_name"])
    default = vars(complete(Namespace(), schema))
    default |= {name: model[source] for name, source in schema.follows.items()}
    refused = unread(configure(Namespace(**model), schema).options, schema.stacks)
    given = {
        name: value
        for name, value in model.items()
        if value != default.get(name) and name not in refused
    }
    if task["_name"] == "language_modeling":
        given |= {name: task[name] for name, x in _LANGUAGE_MODELING.items() if task[name] != x}
    options = ["--task", task["_name"], "--arch", given.pop("_name")]
    if cfg["criterion"]["_name"] == "adaptive_loss":
        options += ["--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"]
    for name, value in sorted(given.items()):
        if value is False:
            continue
        # one word, so that a text such as --user-dir=FOLDER is no option of its own
        options.append(flag(name) if value is True else f"{flag(name)}={value_text(value)}")
    return shlex.join(options)


if __name__ == "__main__":
    main()
