"""A model's dictionaries in its configuration, so that others in their place are seen."""

import hashlib
from typing import Any

from omegaconf import DictConfig, open_dict

_STORED = "dictionaries"


def remember_dictionaries(cfg: Any, task: Any) -> None:
    """Have checkpoints carry digests of the task's dictionaries, or compare them with those that
    the checkpoint of this configuration carries.

    Args:
        cfg: the model's part of fairseq's configuration; anything else is left alone.

    Raises:
        ValueError: a dictionary is as large as the one of the training and another.
    """
    whole = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    pair = (getattr(task, f"{side}_dictionary", None) for side in ("source", "target"))
    current = [_digest(dictionary) for dictionary in pair if hasattr(dictionary, "symbols")]
    if not isinstance(whole, DictConfig) or not current:
        return
    stored = whole.get(_STORED)
    if stored is None:
        with open_dict(whole):
            whole[_STORED] = current
        return
    for side, then, now in zip(("source", "target"), stored, current, strict=False):
        if then != now and then.split()[0] == now.split()[0]:
            raise ValueError(
                f"the {side} dictionary is not the one that the model was trained with: it has as "
                "many types, in another order or others"
            )


def _digest(dictionary: Any) -> str:
    """Number of types and SHA-256 of their names in order."""
    names = "\n".join(dictionary.symbols).encode()
    return f"{len(dictionary)} {hashlib.sha256(names).hexdigest()}"
