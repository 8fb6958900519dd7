"""A model's dictionaries in its configuration, so that others in their place are seen."""

import hashlib
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, open_dict

_STORED = "dictionaries"
SIDES = ("source", "target")


def remember_dictionaries(cfg: Any, task: Any, needed: Sequence[str] = SIDES) -> None:
    """Have checkpoints carry digests of the task's dictionaries, or compare them with those that
    the checkpoint of this configuration carries.

    Args:
        cfg: the model's part of fairseq's configuration; anything else is left alone.
        needed: of which sides the model cannot be without a dictionary.

    Raises:
        ValueError: the task lacks a dictionary, or one is as large as that of the training and
            another.
    """
    whole = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    pair = {side: getattr(task, f"{side}_dictionary", None) for side in SIDES}
    for side in needed:
        if pair[side] is None:
            raise ValueError(
                f"the task {type(task).__name__} has no {side} dictionary, which this model needs"
            )
    current = [_digest(found) for found in pair.values() if hasattr(found, "symbols")]
    if not isinstance(whole, DictConfig) or not current:
        return
    stored = whole.get(_STORED)
    if stored is None:
        with open_dict(whole):
            whole[_STORED] = current
        return
    for side, then, now in zip(SIDES, stored, current, strict=False):
        if then != now and then.split()[0] == now.split()[0]:
            raise ValueError(
                f"the {side} dictionary is not the one that the model was trained with: it has as "
                "many types, in another order or others"
            )


def _digest(dictionary: Any) -> str:
    """Number of types and SHA-256 of their names in order."""
    names = "\n".join(dictionary.symbols).encode()
    return f"{len(dictionary)} {hashlib.sha256(names).hexdigest()}"
