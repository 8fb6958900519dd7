"""What the runner has to know of checkpoints."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoints.files import read_checkpoint
from ..checkpoints.legacy import HARMLESS_GLOBALS
from .command import RecipeError
from .settings import Settings


def evaluated(path: Path, task: str) -> tuple[bool, str]:
    """What a checkpoint is that a model of fairseq's ``task`` is needed of.

    Returns:
        Whether it is one of 2019 and has to be converted, and the mixer of its layers, or all of
        them if they differ.

    Raises:
        CheckpointError: it is none.
        RecipeError: it is of another kind of model.
    """
    state = read_checkpoint(path, also_allow=HARMLESS_GLOBALS)
    configuration = state.get("cfg") or {}
    args = _mapping(state.get("args"))
    stored = _mapping(configuration.get("task")) or args
    found = stored.get("_name") or args.get("task")
    if found not in (None, task):
        raise RecipeError(f"{path} is a model for {found}, and the recipe's are for {task}")
    if str(args.get("arch")).startswith("lightconv"):
        return True, args.get("decoder_conv_type", "dynamic")
    model = _mapping(configuration.get("model"))
    names = []
    for side in ("encoder", "decoder"):
        mixers = model.get(f"{side}_mixers") or ()
        names += mixers.split(",") if isinstance(mixers, str) else mixers
    return False, ",".join(dict.fromkeys(names)) or "fairseq's own"


def _mapping(options: Any) -> Mapping[str, Any]:
    return vars(options) if isinstance(options, Namespace) else options or {}


def require_data(settings: Settings) -> None:
    """See that there are binarised data, and that their dictionaries are those beside a checkpoint
    that is evaluated, if it has any.

    Raises:
        RecipeError: they are not.
    """
    dictionaries, checkpoint = sorted(settings.binarised.glob("dict*.txt")), settings.checkpoint
    if not dictionaries:
        way_out = (
            "--data is the binarised test set that comes with the model, or prepare the data "
            "without --checkpoint first"
            if checkpoint
            else f"to prepare the data again remove {settings.output}/stages"
        )
        raise RecipeError(f"{settings.binarised} has no dictionary: {way_out}")
    for dictionary in dictionaries if checkpoint else ():
        own = checkpoint.parent / dictionary.name
        if own.is_file() and own.read_bytes() != dictionary.read_bytes():
            raise RecipeError(
                f"{dictionary} is not {own}: the data have to be binarised with the model's"
            )
