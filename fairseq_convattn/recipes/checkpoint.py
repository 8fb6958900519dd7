"""Checks of the checkpoint and the data that a recipe evaluates."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..architectures.dictionaries import languages_of
from ..architectures.presets import mixer_family
from ..checkpoints.files import architecture_of, as_mapping, read_checkpoint, stored_options
from ..mixers.config import ATTENTION
from .command import RecipeError
from .settings import Settings


def evaluated(path: Path, task: str, target: str | None = None) -> tuple[bool, str]:
    """Format and mixer of a checkpoint, checked against the recipe's task.

    Args:
        task: fairseq's name of the recipe's task.
        target: the language that the recipe translates into.

    Returns:
        Whether it has the format of 2019 and must be converted, and the mixer of its layers, as
        ``--mixer`` has it; mixers that differ are separated by commas.

    Raises:
        CheckpointError: the file is not a checkpoint.
        RecipeError: its model is for another task, or translates into another language.
    """
    state = read_checkpoint(path)
    chosen = stored_options(state, "task")
    found = chosen.get("_name") or chosen.get("task")
    if found not in (None, task):
        raise RecipeError(f"{path} is a model for {found}, and the recipe's are for {task}")
    *_, language = languages_of(as_mapping(state.get("cfg"))) or [chosen.get("target_lang")]
    if target and re.fullmatch("[a-z]{2}", str(language)) and language != target:
        raise RecipeError(f"{path} translates into {language}, and the recipe into {target}")
    model, names = stored_options(state, "model"), []
    if str(architecture_of(state)).startswith("lightconv"):
        return True, model.get("decoder_conv_type", "dynamic")
    for side in ("encoder", "decoder"):
        mixers = model.get(f"{side}_mixers") or ()
        names += mixers.split(",") if isinstance(mixers, str) else mixers
    labels = (_label(str(name).strip(), model) for name in names)
    return False, ",".join(dict.fromkeys(labels)) or "fairseq's own"


def _label(mixer: str, options: Mapping[str, Any]) -> str:
    family, short = mixer_family(mixer, options), options.get("short_convolution") or "none"
    if family != mixer or mixer not in ATTENTION or short == "none":
        return family
    return f"{mixer} with {short} short convolutions"


def require_data(settings: Settings) -> None:
    """Check that binarised data exist and share the dictionaries beside an evaluated checkpoint.

    Raises:
        RecipeError: the data have no dictionary, or another one than the checkpoint.
    """
    dictionaries, checkpoint = sorted(settings.binarised.glob("dict*.txt")), settings.checkpoint
    if not dictionaries:
        way_out = (
            "--data is the binarised test set that comes with the model, or prepare the data "
            "without --checkpoint first"
            if checkpoint
            else f"prepare the data again: convattn prepare CORPUS --output {settings.data}"
        )
        raise RecipeError(f"{settings.binarised} has no dictionary: {way_out}")
    for dictionary in dictionaries if checkpoint else ():
        own = checkpoint.parent / dictionary.name
        if own.is_file() and own.read_bytes() != dictionary.read_bytes():
            raise RecipeError(
                f"{dictionary} is not {own}: the data have to be binarised with the model's"
            )
