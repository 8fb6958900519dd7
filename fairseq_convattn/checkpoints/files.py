"""Checkpoint files: reading runs no code from a file, writing replaces no file."""

import difflib
import functools
import logging
import re
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.lightconv import LightConvModel
from fairseq.models.lightconv_lm import LightConvLanguageModel
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ..durable import appearing
from ..spelling import printable
from . import stand_ins
from .checks import (
    DIGEST,
    CheckpointError,
    as_container,
    check_archive,
    check_configuration,
    check_digest,
    check_finite,
    check_sizes,
    is_zip,
    naming,
    weights_digest,
)
from .pickles import check_pickles

logger = logging.getLogger(__name__)


def read_checkpoint(path: str | Path) -> dict:
    """Load a checkpoint without running code from it.

    Warns if the architecture is another package's, fairseq's lightconv aside: this package
    converts it.

    Args:
        path: a file that fairseq wrote.

    Raises:
        CheckpointError: the file is not there, is not a checkpoint, is damaged, refers to anything
            that is not allowed, has code among its options, or weights that are not finite.
    """
    state = read_any_checkpoint(path)
    architecture = architecture_of(state)
    if architecture and not (is_ours(architecture) or is_lightconv(architecture)):
        _warn_of_another(architecture)
    return state


def read_any_checkpoint(path: str | Path) -> dict:
    """:func:`read_checkpoint`, without a warning about other packages' architectures."""
    with naming(path):
        state = _load(path)
        if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
            raise CheckpointError("not a fairseq checkpoint, it has no 'model'")
        check_configuration(state)
        check_finite(state["model"])
        check_digest(state)
    return state


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Load tensors by name, without running code from the file.

    Raises:
        CheckpointError: the file is not there, or holds anything else.
    """
    with naming(path):
        state = _load(path)
        if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
            raise CheckpointError("does not hold tensors by name")
        check_finite(state)
    return state


def read_outline(path: str | Path) -> Any:
    """The content of a file, with tensors memory-mapped; the archive is not checked.

    Raises:
        CheckpointError: the file does not load; the message does not name it.
    """
    return _torch_load(path, mmap=is_zip(path))


def architecture_of(state: Mapping[str, Any]) -> str | None:
    """The architecture that a checkpoint names; None if it names none."""
    model = stored_options(state, "model")
    named = model.get("arch") or model.get("_name")
    return str(named) if named else None


def stored_options(state: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """The options of a part of fairseq's configuration, such as ``model`` or ``task``, in a
    checkpoint; all options where they are stored together, as before fairseq 0.10, and none where
    it has none."""
    return as_mapping(state.get("args")) or as_mapping(as_mapping(state.get("cfg")).get(part))


def updates_of(state: Any) -> int | None:
    """Number of updates at which a checkpoint was written; None if it does not say."""
    history = as_mapping(state).get("optimizer_history")
    last = history[-1] if isinstance(history, list) and history else None
    updates = dict.get(last, "num_updates") if isinstance(last, dict) else None
    return updates if isinstance(updates, int) else None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Options of a checkpoint by name; empty for anything that holds none."""
    if isinstance(value, DictConfig):
        value = as_container(value)
    elif isinstance(value, Namespace):
        return vars(value)
    return value if isinstance(value, Mapping) else {}


def is_ours(architecture: str | None) -> bool:
    """Whether this package has the architecture."""
    model = ARCH_MODEL_REGISTRY.get(architecture)
    return model is not None and model.__module__.partition(".")[0] == __package__.partition(".")[0]


def is_lightconv(architecture: str) -> bool:
    """Whether it is one of fairseq's own models of 2019."""
    model = ARCH_MODEL_REGISTRY.get(architecture)
    return model in (LightConvModel, LightConvLanguageModel)


@functools.cache
def _warn_of_another(architecture: str) -> None:
    logger.warning(
        "the architecture %s is not this plugin's: what loads such a model runs its package's "
        "code on the checkpoint's options",
        printable(architecture),
    )


def require_file(path: str | Path) -> None:
    """Check that a file is there.

    Raises:
        CheckpointError: it is not, or is a folder; the message does not name it.
    """
    if Path(path).is_dir():
        raise CheckpointError("it is a folder; give one of its .pt files")
    if not Path(path).is_file():
        others = [file.name for file in Path(path).parent.glob("*.pt") if file.is_file()]
        close = difflib.get_close_matches(Path(path).name, others, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise CheckpointError(f"there is no such file{hint}")


def _load(path: str | Path) -> Any:
    require_file(path)
    check_file(path)
    return _torch_load(path)


def check_file(path: str | Path) -> Any:
    """Check that a file is intact, loads without running code, and needs about as much memory as it
    has bytes, before anything is read into memory.

    Returns:
        The content of the file, with tensors memory-mapped.

    Raises:
        CheckpointError: it is not; the message does not name it.
    """
    check_archive(path)
    outline = read_outline(path)
    check_sizes(outline, Path(path).stat().st_size)
    return outline


def _torch_load(path: str | Path, **options: Any) -> Any:
    check_pickles(path)
    try:
        with stand_ins.allowed():
            return torch.load(path, map_location="cpu", weights_only=True, **options)
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(_reason(error)) from error


def write_checkpoint(state: dict, path: str | Path) -> None:
    """Save a checkpoint with the digest of its weights; it appears complete or not at all,
    whenever the power fails.

    Raises:
        FileExistsError: ``path`` is there already, or appeared while it was written.
        FileNotFoundError: its directory is not there.
    """
    with appearing(Path(path)) as complete:
        save_with_digest(state, complete)


def save_with_digest(state: dict, path: Path) -> None:
    """Write a checkpoint with the digest of its weights.

    Raises:
        OSError: it cannot be written.
    """
    state = {**state, DIGEST: weights_digest(state["model"])}
    try:
        torch.save(state, path)
    except RuntimeError as error:  # torch's own, which does not say why
        raise OSError(f"{path.name} cannot be written; is the disk full?") from error


def _reason(error: Exception) -> str:
    """The reason why a file did not load, without PyTorch's advice to load it unsafely."""
    if not isinstance(error, UnpicklingError):
        first_sentence = re.split(r"\.\s|\n", str(error))[0]
        return f"not a readable PyTorch file ({first_sentence})"
    if found := re.search(r"numpy values .*", str(error)):
        return f"it has {found[0]}"
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused:
        return f"it refers to {refused[1]}, which is not loaded"
    return "it is not a checkpoint, or has something that loads only by running code"


def plain_configuration(task: str, model: str, criterion: str) -> dict[str, Any]:
    """fairseq's configuration from plain values, completed with its defaults."""
    with warnings.catch_warnings():  # of hydra, about fairseq
        warnings.simplefilter("ignore")
        cfg = convert_namespace_to_omegaconf(Namespace(task=task, arch=model, criterion=criterion))
    plain = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    if "sentence_avg" in plain["criterion"]:  # fairseq turns the reference to it into True
        plain["criterion"]["sentence_avg"] = plain["optimization"]["sentence_avg"]
    return plain
