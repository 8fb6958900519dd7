"""Checks that checkpoints, or a training and its first weights, are of one model and dictionary."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from omegaconf import DictConfig

from ..architectures.config import ENCODER_DECODER, LANGUAGE_MODEL, MASKED_LANGUAGE_MODEL
from ..architectures.dictionaries import (
    STORED,
    languages_of,
    require_same_dictionaries,
    reversed_direction,
)
from ..architectures.options import mixer_options
from ..spelling import flag, printable, value_text
from .checks import CheckpointError
from .files import architecture_of, as_mapping, is_ours, read_outline, stored_options
from .recovery import LAST

logger = logging.getLogger(__name__)

_STACKS = ("encoder", "decoder")
_NAMED = {
    ("encoder",): "only an encoder",
    ("decoder",): "only a decoder",
    _STACKS: "an encoder and a decoder",
}
_KINDS = ENCODER_DECODER.kinds | MASKED_LANGUAGE_MODEL.kinds | LANGUAGE_MODEL.kinds
# options that say what a layer computes; probabilities and initial values may change
_OPTIONS = (
    *(f"{side}_layers" for side in _STACKS),
    *(
        name
        for name, option in mixer_options(_STACKS).items()
        if option.kind.annotation is not float and name != "initialization"
    ),
    *(f"{side}_{name}" for side in _STACKS for name in ("attention_heads", "normalize_before")),
    *("activation_fn", "pooler_activation_fn", "no_scale_embedding", "cross_self_attention"),
    *("no_token_positional_embeddings", "share_encoder_layers", "share_all_embeddings"),
    *("share_decoder_input_output_embed", "untie_weights_roberta"),
)
_SHARE_ANYWAY = ("share_all_embeddings", "adaptive_softmax_cutoff")


def require_same_model(checkpoint: DictConfig, cfg: DictConfig, is_first: bool) -> None:
    """Refuse to begin a training with other dictionaries than those of its first weights, or to
    continue it as another network or in the other direction; warn where a new training begins from
    another network's weights.

    Args:
        checkpoint: fairseq's checkpoint options.
        cfg: all options of the training.
        is_first: whether this is the first worker, which warns.

    Raises:
        CheckpointError: an option or the direction differs from that of the checkpoint that goes
            on, the first weights are of a model without encoder or decoder, where the training's
            has one, or the other way round, or the file to begin from is a folder, or not there.
        ValueError: a dictionary has the size but not the content of the checkpoint's.
    """
    named = cfg.checkpoint.restore_file != LAST
    path, begins_anew = _first_weights(checkpoint, named)
    if checkpoint.checkpoint_suffix:
        return
    if path.is_dir():  # fairseq would train from random weights, here and below
        raise CheckpointError(f"{path} is a folder; give one of its .pt files")
    if not path.is_file():
        if named:
            raise CheckpointError(f"--restore-file {path}: there is no such file")
        if checkpoint.continue_once and path == Path(checkpoint.continue_once):
            raise CheckpointError(f"--continue-once {path}: there is no such file")
        return
    try:
        state = as_mapping(read_outline(path))
    except CheckpointError:  # fairseq's load_checkpoint, which follows, says why
        return
    _require_same_stacks(path, state, cfg)
    stored = as_mapping(state.get("cfg")).get(STORED)
    require_same_dictionaries(stored, cfg.get(STORED) or (), str(path))
    if not any(is_ours(architecture_of(x)) for x in (state, {"cfg": cfg})):
        return
    network = _other_network(state, cfg)
    if begins_anew:
        if network and is_first:
            computes = "the new model computes something else with its weights"
            logger.warning("%s %s: %s", path, printable(network), computes)
        return
    direction = reversed_direction(languages_of(as_mapping(state.get("cfg"))), languages_of(cfg))
    if difference := direction or network:
        way_out = "choose a new --save-dir"
        if named:
            way_out = "give it as --finetune-from-model, if the weights fit"
        raise CheckpointError(f"{path} {difference}: {way_out}, or repeat its options")


def _require_same_stacks(path: Path, state: Mapping[str, Any], cfg: DictConfig) -> None:
    architecture = architecture_of({"cfg": cfg})
    if not is_ours(architecture):
        return
    found, needed = _stacks(state), ARCH_MODEL_REGISTRY[architecture].schema.stacks
    if found and found != needed:
        raise CheckpointError(
            f"{path} has {_NAMED[found]}, --arch {architecture} {_NAMED[needed]}: give a "
            "checkpoint of the same task"
        )


def _stacks(state: Mapping[str, Any]) -> tuple[str, ...]:
    """The stacks of a checkpoint's model; none if neither its architecture nor its weights say."""
    architecture, weights = architecture_of(state), as_mapping(state.get("model"))
    if is_ours(architecture):
        return ARCH_MODEL_REGISTRY[architecture].schema.stacks
    return tuple(x for x in _STACKS if any(str(w).startswith(f"{x}.layers.") for w in weights))


def _other_network(state: Mapping[str, Any], cfg: DictConfig) -> str | None:
    """How a checkpoint's model was trained that computes another function than ``cfg``'s."""
    other = other_option(stored_options(state, "model"), as_mapping(cfg.model))
    if other is None:
        return None
    old, new = (architecture_of(x) for x in (state, {"cfg": cfg}))
    if old != new and not any(x in MODEL_REGISTRY or x is None for x in (old, new)):
        return f"was trained with --arch {old}, not {new} ({_contrast(*other)})"
    return f"was trained {_contrast(*other)}"


def _first_weights(checkpoint: DictConfig, named: bool) -> tuple[Path, bool]:
    """The checkpoint that fairseq-train begins from, which need not be there, and whether a new
    training begins from it. ``named``: by ``--restore-file``, and not found in place of a damaged
    one."""
    if checkpoint.restore_file != LAST:
        return Path(checkpoint.restore_file), named and checkpoint.reset_optimizer
    last = Path(checkpoint.save_dir, LAST)
    if last.exists():
        return last, False
    if checkpoint.continue_once:
        return Path(checkpoint.continue_once), checkpoint.reset_optimizer
    return Path(checkpoint.finetune_from_model or last), True


def other_option(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """The first option by which two models compute different functions, and its two values; None
    if there is none. Options that one of them lacks are not compared."""
    for name in _OPTIONS:
        if name == "share_decoder_input_output_embed" and any(map(first.get, _SHARE_ANYWAY)):
            continue
        if any(options.get(f"{name}_to_keep") for options in (first, second)):
            continue  # pruned layers, of which fairseq keeps the number before
        values = _plain(first, name), _plain(second, name)
        if None not in values and _meaning(name, values[0]) != _meaning(name, values[1]):
            return flag(name), *values
    return None


def _contrast(option: str, old: str, new: str) -> str:
    if {old, new} == {"true", "false"}:
        return f"{'with' if old == 'true' else 'without'} {option}"
    return f"with {option} {old}, not {new}"


def _meaning(name: str, text: str) -> Any:
    """An option's value, the same for all texts that the option reads alike; one value for all
    layers counts as a list of equal values."""
    try:
        value = _KINDS[name].read(text)
    except ValueError:  # a number, or not an allowed value any more
        return text
    if not isinstance(value, list | tuple):
        return value
    return tuple(value[:1] if len(set(value)) == 1 else value)


def _plain(options: Mapping[str, Any], name: str) -> str | None:
    """An option as a command line has it."""
    value = options.get(name)
    text = value_text(getattr(value, "value", value))
    return None if value is None else text.lower() if text in ("True", "False") else text
