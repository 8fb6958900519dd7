"""Reads architecture and options of a pre-trained masked language model."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY

from ..architectures.config import configure
from ..architectures.dictionaries import STORED
from ..architectures.layer_mixers import unread
from ..checkpoints.files import architecture_of, read_checkpoint, stored_options
from ..spelling import value_text
from .tasks import GlueError

_FROM_THE_TASK = {"max_positions", "tokens_per_sample"}


class Pretrained(NamedTuple):
    """A pre-trained model.

    Attributes:
        architecture: fairseq-train's ``--arch``.
        options: further options of fairseq-train for the same model.
        max_positions: the longest input of the pre-training.
        learned_positions: whether each of them has a learned embedding, so that no input is longer.
        types: size of the dictionary, with ``<mask>``.
        dictionaries: their digests; None if the checkpoint has none.
        segments: whether segment embeddings tell the sentences of a pair apart, as in BERT; then
            one separator is between them, otherwise two, as in RoBERTa.
    """

    architecture: str
    options: list[str]
    max_positions: int
    learned_positions: bool
    types: int
    dictionaries: Any
    segments: bool


def read_pretrained(path: Path) -> Pretrained:
    """Read a checkpoint of fairseq's trainer, or an average of some.

    Raises:
        CheckpointError: it cannot be read.
        GlueError: it is not a masked language model, or its options are missing or cannot be
            given on a command line.
    """
    state = read_checkpoint(path)
    if not isinstance(state.get("cfg"), Mapping):
        raise GlueError(f"{path} does not hold its model's configuration ('cfg')")
    stored, architecture = dict(stored_options(state, "model")), architecture_of(state)
    if not hasattr(ARCH_MODEL_REGISTRY.get(architecture), "register_classification_head"):
        raise GlueError(
            f"{path} is of the architecture {architecture}; a masked language model such as "
            "roberta or convattn_mlm is needed"
        )
    weights, task = state["model"], stored_options(state, "task")
    own = stored.get("max_positions") or task.get("max_positions")  # of sentence_prediction
    positions = own or task.get("tokens_per_sample")
    if not isinstance(positions, int):
        raise GlueError(f"{path} does not say how many positions its model has")
    vocabulary = [len(w) for name, w in weights.items() if name.endswith("embed_tokens.weight")]
    if not vocabulary:
        raise GlueError(f"{path} has no embeddings of its dictionary")
    return Pretrained(
        architecture,
        _options(architecture, stored, path),
        positions,
        any(name.endswith("embed_positions.weight") for name in weights),
        vocabulary[0],
        state["cfg"].get(STORED),
        bool(stored.get("segments")),
    )


def _options(architecture: str, stored: dict[str, Any], path: Path) -> list[str]:
    """The model's options that ``--arch`` alone would set to something else."""
    parser = argparse.ArgumentParser()
    ARCH_MODEL_REGISTRY[architecture].add_args(parser)
    try:
        left_out = _FROM_THE_TASK.union(_unread(architecture, stored))
    except (TypeError, ValueError) as error:
        raise GlueError(f"{path}: {error}") from error
    actions = [x for x in parser._actions if x.dest in stored and x.dest not in left_out]
    chosen: list[str] = []
    for action in _differing(actions, stored, architecture, []):
        if stored[action.dest] is None:
            continue
        name, text = action.option_strings[0], value_text(stored[action.dest])
        # one word, so that a text such as --user-dir=FOLDER is no option of its own
        chosen.append(name if action.nargs == 0 else f"{name}={text}")
    for action in _differing(actions, stored, architecture, chosen):
        raise GlueError(
            f"{path}: {action.dest} is {stored[action.dest]}, which no option of "
            f"{architecture} sets"
        )
    return chosen


def _unread(architecture: str, stored: dict[str, Any]) -> Collection[str]:
    """The stored options that no layer reads and that a command line therefore refuses."""
    schema = getattr(ARCH_MODEL_REGISTRY[architecture], "schema", None)
    if schema is None:  # one of fairseq's
        return ()
    return unread(configure(argparse.Namespace(**stored), schema).options, schema.stacks)


def _differing(
    actions: Sequence[argparse.Action],
    stored: dict[str, Any],
    architecture: str,
    chosen: Sequence[str],
) -> list[argparse.Action]:
    """The options whose stored value differs from what fairseq-train makes of ``chosen``."""
    words = ["data", "--task", "sentence_prediction", "--required-batch-size-multiple", "1"]
    words += ["--arch", architecture, *chosen]
    parsed = vars(options.parse_args_and_arch(options.get_training_parser(), words))
    return [x for x in actions if not _same(stored[x.dest], parsed.get(x.dest))]


def _same(one: Any, other: Any) -> bool:
    return one == other or value_text(one) == value_text(other)
