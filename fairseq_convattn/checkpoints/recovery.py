"""Recovery of a training that was killed while it saved.

fairseq writes a checkpoint under its own name, then copies it in place to ``checkpoint_last.pt``
and ``checkpoint_best.pt``. A kill or a full disk truncates such a copy.
"""

import copy
import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, open_dict

from ..durable import put_in_place
from .checks import CheckpointError, check_archive, is_zip
from .files import read_outline, updates_of

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"
_BEING_WRITTEN = 600  # seconds since the last write


def recovered(cfg: DictConfig, remove_leftovers: bool) -> DictConfig:
    """fairseq's checkpoint options, changed to restore the folder's newest intact checkpoint if
    ``checkpoint_last.pt`` is damaged.

    Args:
        remove_leftovers: whether to delete half-written files, as one worker should.
    """
    folder = Path(cfg.save_dir)
    if remove_leftovers:
        _remove_leftovers(folder)
    last = folder / LAST
    if cfg.restore_file != LAST or cfg.checkpoint_suffix or not last.exists() or is_whole(last):
        return cfg
    newest = newest_whole(folder)
    if newest is None:
        logger.warning(
            "%r is damaged and no other checkpoint is there: training begins anew", str(last)
        )
        _set_aside(last)
        return cfg
    logger.warning("%r is damaged: training goes on from %r", str(last), str(newest))
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        cfg.restore_file, cfg.finetune_from_model = str(newest), None
    return cfg


def _remove_leftovers(folder: Path) -> None:
    """Remove what no other training can be writing at the moment."""
    for leftover in folder.glob("checkpoint*.pt.tmp"):
        try:
            if time.time() - leftover.stat().st_mtime < _BEING_WRITTEN:
                logger.warning(
                    "%r is half-written and new: delete it if no other training writes it",
                    str(leftover),
                )
                continue
            leftover.unlink()
        except FileNotFoundError:  # another worker was faster
            continue
        except OSError as error:
            logger.warning("cannot remove %r: %s", str(leftover), error.strerror)
        else:
            logger.warning(
                "removed %r, left by a training that was ended while it saved", str(leftover)
            )


def restore_last(folder: Path) -> None:
    """Copy the newest intact checkpoint to ``checkpoint_last.pt`` if that is missing or damaged."""
    last = folder / LAST
    if last.exists() and is_whole(last):
        return
    newest = newest_whole(folder)
    if newest is None:
        _set_aside(last)
    else:
        copied = last.with_suffix(".pt.tmp")
        shutil.copyfile(newest, copied)
        put_in_place(copied, last)


def _set_aside(damaged: Path) -> None:
    """Rename a file to a name that fairseq does not load."""
    with suppress(FileNotFoundError):  # another worker was faster
        os.replace(damaged, damaged.with_suffix(".pt.damaged"))


def newest_whole(folder: Path) -> Path | None:
    """The intact checkpoint with the most updates, except ``checkpoint_last.pt``.

    One without optimizer state, such as an average, is used only if none has it.
    """
    found = []
    for path in folder.glob("checkpoint*.pt"):
        if path.name != LAST and is_whole(path) and (progress := _progress(path)):
            found.append((*progress, path.stat().st_mtime_ns, path))
    return max(found)[-1] if found else None


def is_whole(path: Path) -> bool:
    """Whether a file is intact, as far as its format allows to check."""
    try:
        check_archive(path)
        if not is_zip(path):  # of an older format, or zeros that a loss of power left
            read_outline(path)
    except (CheckpointError, FileNotFoundError):  # the latter: another worker was faster
        return False
    return True


def _progress(path: Path) -> tuple[bool, int] | None:
    """Whether a checkpoint has optimizer state, and its number of updates; None if the file is no
    checkpoint."""
    try:
        state = read_outline(path)
    except CheckpointError:
        return None
    updates = updates_of(state)
    return None if updates is None else (state.get("last_optimizer_state") is not None, updates)
