"""Checks that a training begins from a checkpoint of its dictionaries and model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ..architectures.dictionaries import STORED, require_same_dictionaries
from ..architectures.options import mixer_options
from ..outputs import flag
from .checks import CheckpointError
from .files import architecture_of, as_mapping, is_ours, read_outline, stored_options
from .recovery import LAST

_STACKS = ("encoder", "decoder")
# options that say what a layer computes; probabilities and initial values may change
_OF_MIXERS = {
    name: option.kind
    for name, option in mixer_options(_STACKS).items()
    if option.kind.annotation is not float and name != "initialization"
}
_OPTIONS = (
    *_OF_MIXERS,
    *(f"{side}_{name}" for side in _STACKS for name in ("attention_heads", "normalize_before")),
    "activation_fn",
)


def require_same_model(checkpoint: DictConfig, cfg: DictConfig) -> None:
    """Refuse to begin a training with other dictionaries than those of its first weights, or to
    continue it as another network.

    Args:
        checkpoint: fairseq's checkpoint options.
        cfg: all options of the training.

    Raises:
        CheckpointError: an option differs from that of the checkpoint in ``--save-dir``.
        ValueError: a dictionary has the size but not the content of the checkpoint's.
    """
    path = _first_weights(checkpoint)
    if checkpoint.checkpoint_suffix or not path.is_file():
        return
    try:
        state = as_mapping(read_outline(path))
    except CheckpointError:  # fairseq's load_checkpoint, which follows, says why
        return
    stored = as_mapping(state.get("cfg")).get(STORED)
    require_same_dictionaries(stored, cfg.get(STORED) or (), str(path))
    if path == Path(checkpoint.save_dir, LAST) and is_ours(architecture_of(state)):
        _require_same_options(path, stored_options(state, "model"), as_mapping(cfg.model))


def _first_weights(checkpoint: DictConfig) -> Path:
    """The checkpoint that fairseq-train begins from, which need not be there."""
    if checkpoint.restore_file != LAST:
        return Path(checkpoint.restore_file)
    last = Path(checkpoint.save_dir, LAST)
    if last.exists():
        return last
    return Path(checkpoint.continue_once or checkpoint.finetune_from_model or last)


def _require_same_options(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in _OPTIONS:
        old, new = _plain(before, name), _plain(now, name)
        if None not in (old, new) and _meaning(name, old) != _meaning(name, new):
            raise CheckpointError(
                f"{path} was trained with {flag(name)} {old}, not {new}: choose a new "
                "--save-dir, or repeat its options"
            )


def _meaning(name: str, text: str) -> Any:
    """An option's value, the same for all texts that the option reads alike; one value for all
    layers counts as a list of equal values."""
    try:
        value = _OF_MIXERS[name].read(text)
    except (KeyError, ValueError):  # not a mixer's option; not an allowed value any more
        return text
    if not isinstance(value, list | tuple):
        return value
    return tuple(value[:1] if len(set(value)) == 1 else value)


def _plain(options: Mapping[str, Any], name: str) -> str | None:
    """An option as a command line has it."""
    value = options.get(name)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return None if value is None else str(getattr(value, "value", value))
