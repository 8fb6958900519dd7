"""A model's architectures in fairseq's registries."""

import logging
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    MODEL_REGISTRY,
    BaseFairseqModel,
    register_model,
    register_model_architecture,
)
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, open_dict

from .config import Schema, complete

logger = logging.getLogger(__name__)


def register_family(
    name: str,
    model: type[BaseFairseqModel],
    schema: Schema,
    presets: dict[str, dict],
    check: Callable[[Namespace], Any],
) -> None:
    """Register a model and its architectures with fairseq.

    Args:
        presets: what each architecture sets.
        check: raises ValueError, in one line, of a complete configuration that cannot work.

    Raises:
        ImportError: fairseq knows another model under that name, which it would keep.
    """
    if name in MODEL_REGISTRY:
        raise ImportError(f"another plugin has registered a fairseq model named {name!r}")
    register_model(name, dataclass=schema.config)(model)
    for arch, preset in presets.items():
        register_model_architecture(name, arch)(_architecture(preset, schema, check))
    ARCH_CONFIG_REGISTRY[name] = _architecture({}, schema, check)  # fairseq's own does nothing


def warn_of_dropped_sentences(task: str | None, required_batch_size_multiple: int) -> None:
    """Warn unless the task, by its name, sees to it that no sentence is dropped."""
    keeps_all = getattr(TASK_REGISTRY.get(task), "keeps_every_sentence", False)
    if required_batch_size_multiple > 1 and not keeps_all:
        logger.warning(
            "fairseq silently drops the last batch of a data set unless its size is a "
            "multiple of %d; add --required-batch-size-multiple 1 to keep every sentence",
            required_batch_size_multiple,
        )


def _architecture(preset: dict, schema: Schema, check: Callable[[Namespace], Any]):
    """What fairseq calls for ``--arch``: with the command line's options before anything
    is loaded, and again with a stored or hydra configuration."""

    def apply(cfg: Namespace | DictConfig) -> None:
        with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
            # a checkpoint keeps its model's whole description, whatever defaults become
            _fill(cfg, vars(complete(cfg, schema, preset)))
        if isinstance(cfg, Namespace):
            try:
                check(complete(cfg, schema))
            except ValueError as error:
                raise SystemExit(f"error: {error}") from None
            multiple = getattr(cfg, "required_batch_size_multiple", 1)
            warn_of_dropped_sentences(getattr(cfg, "task", None), multiple)

    return apply


def _fill(cfg: Namespace | DictConfig, values: dict) -> None:
    for name, value in values.items():
        if value is not None and getattr(cfg, name, None) is None:
            setattr(cfg, name, value)
