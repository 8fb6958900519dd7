"""Digests of dictionaries, and languages, in a model's configuration: they reveal exchanged
dictionaries and a reversed direction."""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary
from omegaconf import DictConfig, ListConfig, open_dict
from torch import Tensor, nn

logger = logging.getLogger(__name__)

STORED, LANGUAGES = "dictionaries", "languages"
WORD = "\u2581"  # begins a word's first piece, by SentencePiece
_DIGEST = re.compile(r"\d+ [0-9a-f]{64}")
SIDES = ("source", "target")
_WAY_OUT = (
    "binarise the data with the dictionaries of the training (fairseq-preprocess --srcdict, "
    "--tgtdict)"
)
_TABLE = re.compile(
    r"(encoder|decoder)\.(?:sentence_encoder\.)?embed_tokens\.(?:embeddings\.\d+\.0\.)?weight"
)


def subwords_of(dictionary: Dictionary) -> str | None:
    """fairseq's name of the subwords that a dictionary has; None for words."""
    if any(symbol.startswith(WORD) for symbol in dictionary.symbols):
        return "sentencepiece"
    if any(symbol.endswith("@@") for symbol in dictionary.symbols):
        return "subword_nmt"
    return None


def remember_dictionaries(cfg: Any, task: Any, needed: Sequence[str] = SIDES) -> None:
    """Store digests of the task's dictionaries in ``cfg``, or compare them with stored ones.

    Checkpoints carry the digests, so that a model is not used with other dictionaries.

    Args:
        cfg: the model's part of fairseq's configuration; a namespace is left alone.
        needed: sides that must have a dictionary.

    Raises:
        ValueError: the task lacks a dictionary, a dictionary has the size but not the content of
            the training's, or the stored value is not a list of digests.
    """
    whole = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    current = []
    for side in SIDES:
        dictionary = getattr(task, f"{side}_dictionary", None)
        if dictionary is None and side in needed:
            raise ValueError(
                f"the task {type(task).__name__} has no {side} dictionary, which this model needs"
            )
        if hasattr(dictionary, "symbols"):
            dictionary.origin = _origin(task, side)
            current.append(digest(dictionary))
    if not isinstance(whole, DictConfig) or not current:
        return
    if whole.get(STORED) is None:
        with open_dict(whole):
            whole[STORED] = current
    require_same_dictionaries(whole[STORED], current, "the model")


def remember_languages(cfg: Any, task: Any) -> None:
    """Store the task's languages in ``cfg``, or warn if they are the stored ones reversed.

    Those that fairseq stores itself are None where it has inferred them from the data's folder, and
    stay so: another folder may call the languages otherwise.

    Args:
        cfg: the model's part of fairseq's configuration; a namespace is left alone.
    """
    whole = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    now = _languages(getattr(task, "cfg", None))
    if not isinstance(whole, DictConfig) or None in now:
        return
    if whole.get(LANGUAGES) is None:
        with open_dict(whole):
            whole[LANGUAGES] = languages_of(whole) or now
    if reason := reversed_direction(languages_of(whole), now):
        logger.warning("the model %s", reason)


def languages_of(cfg: Mapping[str, Any] | DictConfig) -> list[str]:
    """The languages that a configuration stores; empty where it has none."""
    stored = cfg.get(LANGUAGES)
    found = list(stored) if isinstance(stored, list | ListConfig) else _languages(cfg.get("task"))
    return [] if None in found else found


def reversed_direction(then: Sequence[str], now: Sequence[str]) -> str | None:
    """How a model of the languages ``then`` was trained if ``now`` they are reversed."""
    if len(then) != 2 or then == now or then != now[::-1]:
        return None
    return f"was trained to translate from {then[0]} to {now[0]}, not from {now[0]} to {then[0]}"


def _languages(task: Any) -> list[str | None]:
    """The languages in a task's options; None where fairseq infers them."""
    options = task if isinstance(task, Mapping | DictConfig) else getattr(task, "__dict__", {})
    return [options.get(f"{side}_lang") for side in SIDES]


def require_same_dictionaries(
    stored: Any, current: Sequence[str], model: str, way_out: str = _WAY_OUT
) -> None:
    """Compare digests that a checkpoint stores, if any, with those of a task's dictionaries.

    Args:
        model: its name in the message.
        way_out: what would work, for the message.

    Raises:
        ValueError: a dictionary has the size but not the content of the training's, or the stored
            value is not a list of digests.
    """
    if stored is None:
        return
    for side, then, now in zip(SIDES, _digests(stored), current, strict=False):
        if then != now and then.split()[0] == now.split()[0]:
            raise ValueError(
                f"the {side} dictionary is not the one that {model} was trained with: it has as "
                f"many types, but others or in another order; {way_out}"
            )


def check_types(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Compare a model's vocabulary sizes with those of the weights that it is to load.

    Raises:
        ValueError: they differ; the message names the model's dictionary.
    """
    own, loaded = _types(model.state_dict()), _types(weights)
    for side, types in own.items():
        if loaded.get(side, types) != types:
            origin = getattr(getattr(model, side).dictionary, "origin", "the data's dictionary")
            raise ValueError(
                f"the checkpoint has {loaded[side]:,} types, {origin} has {types:,}; {_WAY_OUT}"
            )


def _types(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Number of types in the embedding tables of ``encoder`` and ``decoder``."""
    counts: dict[str, int] = {}
    for name, weight in weights.items():
        if table := _TABLE.fullmatch(name):
            counts[table[1]] = counts.get(table[1], 0) + len(weight)
    return counts


def _origin(task: Any, side: str) -> str:
    """The file that a task has read a dictionary from."""
    options = getattr(task, "cfg", None) or getattr(task, "args", None)
    folders = utils.split_paths(getattr(options, "data", None) or "")
    language = getattr(options, f"{side}_lang", None)
    for folder in folders[:1]:
        for name in (f"dict.{language}.txt", "dict.txt", "input0/dict.txt"):
            if Path(folder, name).is_file():
                return str(Path(folder, name))
    return f"the {side} dictionary"


def _digests(stored: Any) -> list[str]:
    """The digests that a checkpoint stores, validated, because anybody may have changed them."""
    found = list(stored) if isinstance(stored, list | ListConfig) else []
    if not found or not all(isinstance(x, str) and _DIGEST.fullmatch(x) for x in found):
        raise ValueError(
            f"the checkpoint's cfg.{STORED} is {str(stored)[:80]!r} and no list of digests; "
            "remove it if you have changed it"
        )
    return found


def digest(dictionary: Any) -> str:
    """Number of types, and the SHA-256 of their names in order."""
    names = "\n".join(dictionary.symbols).encode()
    return f"{len(dictionary)} {hashlib.sha256(names).hexdigest()}"
