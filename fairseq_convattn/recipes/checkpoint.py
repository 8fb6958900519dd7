"""What the runner has to know of checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoints.files import read_checkpoint
from ..checkpoints.legacy import HARMLESS_GLOBALS
from .errors import RecipeError


class Evaluated(NamedTuple):
    """A checkpoint that is there already.

    Attributes:
        published_format: whether it is one of 2019 and has to be converted.
        mixer: the mixer of its layers, or all of them if they differ.
    """

    published_format: bool
    mixer: str


def evaluated(path: Path, task: str) -> Evaluated:
    """What a checkpoint is that a model of fairseq's ``task`` is needed of.

    Raises:
        CheckpointError: it is none.
        RecipeError: it is of another kind of model.
    """
    state = read_checkpoint(path, also_allow=HARMLESS_GLOBALS)
    found = _task(state)
    if found not in (None, task):
        raise RecipeError(f"{path} is a model for {found}, and the recipe's are for {task}")
    args = state.get("args")
    if str(getattr(args, "arch", "")).startswith("lightconv"):
        return Evaluated(True, getattr(args, "decoder_conv_type", "dynamic"))
    model = (state.get("cfg") or {}).get("model") or {}
    stored = [model.get(f"{side}_mixers") for side in ("encoder", "decoder")]
    names = [name for value in stored if value for name in _names(value)]
    return Evaluated(False, ",".join(dict.fromkeys(names)) or "fairseq's own")


def _task(state: dict[str, Any]) -> str | None:
    """fairseq's name of what a model was trained for, where it is known."""
    stored = (state.get("cfg") or {}).get("task") or state.get("args")
    if isinstance(stored, Mapping):
        return stored.get("_name")
    return getattr(stored, "_name", None) or getattr(stored, "task", None)


def _names(mixers: str | list[str]) -> list[str]:
    return mixers.split(",") if isinstance(mixers, str) else list(mixers)


def require_dictionaries(checkpoint: Path, binarised: Path) -> None:
    """See that data are there, and with the dictionaries that lie beside the checkpoint, if any.

    Raises:
        RecipeError: they are not.
    """
    dictionaries = sorted(binarised.glob("dict*.txt"))
    if not dictionaries:
        raise RecipeError(
            f"{binarised} has no dictionary: --data is the binarised test set that comes with the "
            "model, or prepare the data without --checkpoint first"
        )
    for dictionary in dictionaries:
        own = checkpoint.parent / dictionary.name
        if own.is_file() and own.read_bytes() != dictionary.read_bytes():
            raise RecipeError(
                f"{dictionary} is not {own}: the data have to be binarised with the model's"
            )


def updates_done(folder: Path) -> int:
    """How far the training is that saves its checkpoints in a folder."""
    last = folder / "checkpoint_last.pt"
    if not last.is_file():
        return 0
    return read_checkpoint(last)["optimizer_history"][-1]["num_updates"]
