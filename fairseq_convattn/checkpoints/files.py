"""Checkpoint files: reading runs nothing that a file brings, writing replaces none."""

import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

_SAVED = re.compile(r"checkpoint(?:_\d+_)?\d+\.pt")


class CheckpointError(ValueError):
    """A checkpoint is not what it should be; the message says in one line why."""


def read_checkpoint(path: str | Path, also_allow: Sequence[type | tuple[type, str]] = ()) -> dict:
    """Load a checkpoint without running anything that it brings.

    Args:
        path: a file that fairseq wrote.
        also_allow: types that it may hold beside tensors and configuration, as
            ``torch.serialization.safe_globals`` takes them.

    Raises:
        CheckpointError: the file is not there, is no checkpoint, or refers to anything
            that is not allowed.
    """
    state = _load(path, also_allow)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(f"{path}: not a fairseq checkpoint, it has no 'model'")
    return state


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Load tensors by name, without running anything that the file brings.

    Raises:
        CheckpointError: the file is not there, or holds anything else.
    """
    state = _load(path)
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise CheckpointError(f"{path}: does not hold tensors by name")
    return state


def _load(path: str | Path, also_allow: Sequence[type | tuple[type, str]] = ()) -> Any:
    if not Path(path).is_file():
        raise CheckpointError(f"{path}: there is no such file")
    # The context would on leaving forbid again what was allowed before it.
    allowed = torch.serialization.get_safe_globals()
    more = [entry for entry in also_allow if entry not in allowed]
    try:
        with torch.serialization.safe_globals(more):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(f"{path}: {_reason(error)}") from error


def require_new(path: str | Path) -> None:
    """See that a file can be written without replacing one, before the work is done.

    Raises:
        FileExistsError: ``path`` is there already.
        FileNotFoundError: its directory is not there.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{path} is there already; it is not overwritten")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no directory {Path(path).parent}")


def write_checkpoint(state: dict, path: str | Path) -> None:
    """Save a checkpoint, which appears complete or not at all.

    Raises:
        FileExistsError: ``path`` is there already, or appeared while it was written.
        FileNotFoundError: its directory is not there.
    """
    with TemporaryDirectory(dir=Path(path).parent, prefix=".writing-") as directory:
        complete = Path(directory, Path(path).name)
        torch.save(state, complete)
        require_new(path)
        os.replace(complete, path)


def restore_last(folder: Path) -> None:
    """Let fairseq-train continue where it was interrupted while it copied a checkpoint, which is
    whole, to ``checkpoint_last.pt``: the newest of an epoch or of an interval is copied again."""
    last = folder / "checkpoint_last.pt"
    if zipfile.is_zipfile(last):  # its end is there
        return
    last.unlink(missing_ok=True)
    saved = [path for path in folder.glob("checkpoint*.pt") if _SAVED.fullmatch(path.name)]
    if saved:
        shutil.copyfile(max(saved, key=lambda path: path.stat().st_mtime_ns), last)


def _reason(error: Exception) -> str:
    """Why a file did not load, without PyTorch's advice to load it unsafely."""
    if not isinstance(error, UnpicklingError):
        first_sentence = re.split(r"\.\s|\n", str(error))[0]
        return f"not a readable PyTorch file ({first_sentence})"
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused:
        return f"it refers to {refused[1]}, which is not loaded"
    return "it is no PyTorch file that loads without running code"
