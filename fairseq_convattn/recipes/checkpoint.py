"""What the runner has to know of checkpoints."""

from argparse import Namespace
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
    configuration, args = state.get("cfg") or {}, _mapping(state.get("args"))
    stored = _mapping(configuration.get("task")) or args
    found = stored.get("_name") or args.get("task")
    if found not in (None, task):
        raise RecipeError(f"{path} is a model for {found}, and the recipe's are for {task}")
    if str(args.get("arch")).startswith("lightconv"):
        return Evaluated(True, args.get("decoder_conv_type", "dynamic"))
    model, names = configuration.get("model") or {}, []
    for side in ("encoder", "decoder"):
        mixers = model.get(f"{side}_mixers") or ()
        names += mixers.split(",") if isinstance(mixers, str) else mixers
    return Evaluated(False, ",".join(dict.fromkeys(names)) or "fairseq's own")


def _mapping(options: Any) -> Mapping[str, Any]:
    return vars(options) if isinstance(options, Namespace) else options or {}


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
