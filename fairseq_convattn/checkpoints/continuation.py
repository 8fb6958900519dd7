"""Checks that a training continues as the model that its checkpoint holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

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


def require_same_model(checkpoint: DictConfig, model: Any) -> None:
    """Refuse to continue a training as another network.

    Args:
        checkpoint: fairseq's checkpoint options.
        model: those of the model.

    Raises:
        CheckpointError: an option differs from that of the checkpoint in ``--save-dir``.
    """
    path = Path(checkpoint.save_dir, LAST)
    if checkpoint.restore_file != LAST or checkpoint.checkpoint_suffix or not path.is_file():
        return
    state = read_outline(path)
    if not is_ours(architecture_of(state)):
        return
    before, now = stored_options(state, "model"), as_mapping(model)
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
