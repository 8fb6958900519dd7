"""Checkpoints of fairseq's ``lightconv`` models, as published in 2019, as ours.

Since October 2022 fairseq refuses its own published LightConv and DynamicConv models. A
converted one is an ordinary ``convattn`` checkpoint, with the same outputs.
"""

import dataclasses
import re
from argparse import Namespace
from pathlib import Path

import torch
from fairseq import utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import Tensor

from .architectures.config import ConvAttnConfig, complete
from .architectures.skeleton import skeleton
from .checkpoint_files import CheckpointError, read_checkpoint, require_new, write_checkpoint


class _Inert:
    """Stands in for the training meters that 2019 checkpoints pickle: holds, does nothing."""


_METERS = ("AverageMeter", "MetersDict", "StopwatchMeter", "TimeMeter")
_HARMLESS = [
    (_Inert, f"{module}.{name}")
    for module in ("fairseq.meters", "fairseq.logging.meters")
    for name in _METERS
]

_FIELDS = {f.name for f in dataclasses.fields(ConvAttnConfig)}
_RENAMED_OPTIONS = {
    "encoder_conv_type": "encoder_mixers",
    "decoder_conv_type": "decoder_mixers",
    "encoder_kernel_size_list": "encoder_kernel_sizes",
    "decoder_kernel_size_list": "decoder_kernel_sizes",
}
_TASK_OPTIONS = ("source_lang", "target_lang", "left_pad_source", "left_pad_target")

_LAYER = re.compile(r"((?:encoder|decoder)\.layers\.\d+\.)(.+)")
_RENAMED_KEYS = {
    "linear1": "self_attn.in_proj",
    "linear2": "self_attn.out_proj",
    "conv.weight_linear": "self_attn.kernel_proj",
    "conv.weight": "self_attn.kernel",
    "conv.bias": "self_attn.bias",
    "layer_norms.0": "self_attn_layer_norm",
    "layer_norms.1": "final_layer_norm",
    "layer_norm1": "self_attn_layer_norm",
    "layer_norm2": "final_layer_norm",
    "conv_layer_norm": "self_attn_layer_norm",
}
# Dummies, and a bias that later versions of fairseq store without ever having set it.
_DROPPED_KEYS = re.compile(r"(encoder|decoder)\.version|.*(\._float_tensor|\.conv\.conv_bias)")


def convert_checkpoint(old: str | Path, new: str | Path) -> Namespace:
    """Write the ``convattn`` checkpoint of a ``lightconv`` checkpoint.

    Nothing that the old file brings is executed, and ``new`` appears complete or not at
    all.

    Args:
        old: a checkpoint as fairseq's trainer wrote it, v0.6 or later, any precision.
        new: the file to write; it must not exist.

    Returns:
        The model's configuration, complete.

    Raises:
        CheckpointError: ``old`` is not such a checkpoint, or asks for code to run.
        FileExistsError: ``new`` is there already.
        FileNotFoundError: the directory of ``new`` is not there.
    """
    require_new(new)
    state = read_checkpoint(old, also_allow=_HARMLESS)
    options = _options(state)
    args = complete(_model_options(options))
    model = _model_state(state["model"], args)
    write_checkpoint(
        {
            "args": None,
            "cfg": _configuration(options, args),
            "model": model,
            "optimizer_history": _optimizer_history(state),
            "extra_state": {"train_iterator": {"epoch": 1}},
        },
        new,
    )
    return args


def _options(state: dict) -> dict:
    """The options that the model was trained with, and its task's."""
    args = state.get("args")
    if args is None:  # fairseq 0.10 and later
        cfg = state.get("cfg") or {}
        task, args = cfg.get("task"), cfg.get("model")
    else:
        task = args
    if not isinstance(args, Namespace):
        raise CheckpointError("the checkpoint does not say how its model was built")
    arch = str(getattr(args, "arch", None))
    if arch.startswith("lightconv_lm"):
        raise CheckpointError(f"{arch} is a language model; only translation models are converted")
    if not arch.startswith("lightconv"):
        raise CheckpointError(f"its architecture is {arch}, not one of fairseq's lightconv models")
    task = task if isinstance(task, dict) else vars(task or Namespace())
    return {**task, **vars(args)}


def _model_options(options: dict) -> Namespace:
    """Their values in our configuration; ``encoder_conv_type`` and its like are renamed."""
    known = {_RENAMED_OPTIONS.get(name, name): value for name, value in options.items()}
    known = {name: value for name, value in known.items() if name in _FIELDS}
    for side in ("encoder", "decoder"):
        known[f"{side}_glu"] = str(bool(known.get(f"{side}_glu", True))).lower()
        known[f"{side}_embed_path"] = None
    known["weight_norm"] = "softmax" if options.get("weight_softmax", True) else "none"
    cutoff = known.get("adaptive_softmax_cutoff")
    known["adaptive_softmax_cutoff"] = utils.eval_str_list(cutoff, type=int) if cutoff else None
    return Namespace(**known)


def _model_state(old: dict[str, Tensor], args: Namespace) -> dict[str, Tensor]:
    """The state dict of our model, checked against the model that ``args`` describes."""
    state = {
        _renamed(key): value.float() if value.is_floating_point() else value
        for key, value in old.items()
        if not _DROPPED_KEYS.fullmatch(key)
    }
    kernels = [key for key in state if key.endswith(".self_attn.kernel")]
    state.update({key: state[key].flatten(1) for key in kernels})  # [heads, 1, taps] in 2019
    args.conv_bias = any(key.endswith(".self_attn.bias") for key in state)
    version = torch.tensor([3.0])  # with an older one fairseq drops the last layer norm
    state.update({"encoder.version": version, "decoder.version": version.clone()})
    try:
        types = (state[f"{side}.embed_tokens.weight"].size(0) for side in ("encoder", "decoder"))
        model = skeleton(args, *types)
        model.upgrade_state_dict(state)
        model.load_state_dict(state, strict=True)
    except Exception as error:  # fairseq raises this very class too
        reason = " ".join(str(error).split())
        raise CheckpointError(f"its weights do not fit its options: {reason}") from error
    return state


def _renamed(key: str) -> str:
    if key == "decoder.embed_out":
        return "decoder.output_projection.weight"
    layer = _LAYER.fullmatch(key)
    if layer is None:
        return key
    name, _, parameter = layer[2].rpartition(".")
    whole = _RENAMED_KEYS.get(layer[2])  # conv.weight and conv.bias are parameters
    return layer[1] + (whole or f"{_RENAMED_KEYS.get(name, name)}.{parameter}")


def _configuration(options: dict, args: Namespace) -> dict:
    """A fairseq configuration of plain values."""
    task = {name: options[name] for name in _TASK_OPTIONS if options.get(name) is not None}
    data = options.get("data")
    data = data[0] if isinstance(data, list) else data
    limits = {
        name: getattr(args, name) for name in ("max_source_positions", "max_target_positions")
    }
    cfg = convert_namespace_to_omegaconf(
        Namespace(task="translation", arch="convattn", data=data, **task, **limits)
    )
    cfg = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    cfg["model"] = {**vars(args), "_name": "convattn"}
    return cfg


def _optimizer_history(state: dict) -> list[dict]:
    """What fairseq wants to find: under what conditions the weights came about."""
    last = (state.get("optimizer_history") or [{}])[-1]
    return [
        {
            "criterion_name": str(last.get("criterion_name")),
            "optimizer_name": str(last.get("optimizer_name")),
            "lr_scheduler_state": {},
            "num_updates": int(last.get("num_updates", 0)),
        }
    ]
