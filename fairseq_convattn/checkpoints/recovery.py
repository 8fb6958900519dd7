"""Going on after a training was killed while it saved.

fairseq writes a checkpoint whole under its own name and then copies it, in place, to
``checkpoint_last.pt`` and ``checkpoint_best.pt``: a kill or a full disk leaves a copy cut off.
"""

import copy
import logging
import os
import shutil
from pathlib import Path

from omegaconf import DictConfig, open_dict

from .checks import CheckpointError, check_archive
from .files import read_outline

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"


def recovered(cfg: DictConfig, remove_leftovers: bool) -> DictConfig:
    """fairseq's checkpoint options, which restore the newest whole checkpoint of the folder where
    ``checkpoint_last.pt`` is damaged; what half-written files are left may be removed."""
    folder = Path(cfg.save_dir)
    if remove_leftovers:
        for leftover in folder.glob("checkpoint*.pt.tmp"):
            leftover.unlink()
            logger.warning("removed %s, left by a training that was ended while it saved", leftover)
    last = folder / LAST
    if cfg.restore_file != LAST or cfg.checkpoint_suffix or not last.exists() or is_whole(last):
        return cfg
    newest = newest_whole(folder)
    if newest is None:
        logger.warning("%s is damaged and no other checkpoint is there: training begins anew", last)
        last.unlink()
        return cfg
    logger.warning("%s is damaged: training goes on from %s", last, newest)
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        cfg.restore_file, cfg.finetune_from_model = str(newest), None
    return cfg


def restore_last(folder: Path) -> None:
    """Copy the newest whole checkpoint to ``checkpoint_last.pt`` if that is missing or damaged."""
    last = folder / LAST
    if last.exists() and is_whole(last):
        return
    last.unlink(missing_ok=True)
    newest = newest_whole(folder)
    if newest is not None:
        copied = last.with_suffix(".pt.tmp")
        shutil.copyfile(newest, copied)
        os.replace(copied, last)


def newest_whole(folder: Path) -> Path | None:
    """The whole checkpoint of a training after the most updates, of any name but the last's."""
    found = []
    for path in folder.glob("checkpoint*.pt"):
        if path.name != LAST and is_whole(path):
            found.append((_updates(path), path.stat().st_mtime_ns, path))
    return max(found)[2] if found else None


def is_whole(path: Path) -> bool:
    """Whether nothing of a file is missing or damaged, as far as its format can tell."""
    try:
        check_archive(path)
    except CheckpointError:
        return False
    return True


def _updates(path: Path) -> int:
    """After how many updates it was saved; -1 where it is no checkpoint."""
    try:
        return int(read_outline(path)["optimizer_history"][-1]["num_updates"])
    except (CheckpointError, LookupError, TypeError, ValueError):
        return -1
