"""A model's architectures in fairseq's registries."""

import importlib.util
import logging
from argparse import Namespace
from collections.abc import Callable
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
from .layer_mixers import refuse
from .unread_options import refuse_unread

logger = logging.getLogger(__name__)

TASK_MODELS = {
    "translation": "convattn",
    "summarization": "convattn",
    "language_modeling": "convattn_lm",
    "masked_lm": "convattn_mlm",
    "sentence_prediction": "convattn_mlm",
}


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
        register_model_architecture(name, arch)(_architecture(name, preset, schema, check))
    # fairseq's own does nothing
    ARCH_CONFIG_REGISTRY[name] = _architecture(name, {}, schema, check)


def warn_of_dropped_sentences(task: str | None, required_batch_size_multiple: int) -> None:
    """Warn unless the task, by its name, sees to it that no sentence is dropped."""
    keeps_all = getattr(TASK_REGISTRY.get(task), "keeps_every_sentence", False)
    if required_batch_size_multiple > 1 and not keeps_all:
        logger.warning(
            "fairseq silently drops the last batch of a data set unless its size is a "
            "multiple of %d; add --required-batch-size-multiple 1 to keep every sentence",
            required_batch_size_multiple,
        )


def _architecture(model: str, preset: dict, schema: Schema, check: Callable[[Namespace], Any]):
    """What fairseq calls for ``--arch``: with the command line's options before anything
    is loaded, and again with a stored or hydra configuration."""

    def apply(cfg: Namespace | DictConfig) -> None:
        if isinstance(cfg, DictConfig):
            with open_dict(cfg):
                # a checkpoint keeps its model's whole description, whatever defaults become
                _fill(cfg, vars(complete(cfg, schema, preset)))
        else:
            given = _given(cfg, schema)
            _train_bfloat16_without_tpu(cfg)
            try:
                _check_task(model, cfg)
                _fill(cfg, vars(complete(cfg, schema, preset)))
                options = complete(cfg, schema)
                check(options)
                refuse_unread(options, schema.stacks, given)
            except ValueError as error:
                raise SystemExit(f"error: {error}") from None
            multiple = getattr(cfg, "required_batch_size_multiple", 1)
            warn_of_dropped_sentences(getattr(cfg, "task", None), multiple)

    return apply


def _train_bfloat16_without_tpu(args: Namespace) -> None:
    """fairseq takes ``--bf16`` for a TPU, which it cannot use without this library."""
    if getattr(args, "bf16", False) and importlib.util.find_spec("torch_xla") is None:
        args.tpu = False


def _given(args: Namespace, schema: Schema) -> set[str]:
    """The options that a user named; none where a preset has been filled in already, from
    which they cannot be told."""
    given = {name for name, value in vars(args).items() if value is not None}
    return set() if given.issuperset(schema.base) else given


def _check_task(model: str, args: Namespace) -> None:
    task = getattr(args, "task", None)
    if TASK_MODELS.get(task, model) != model:
        own = " and ".join(name for name in TASK_MODELS if TASK_MODELS[name] == model)
        refuse(
            "arch",
            f"{args.arch} is for --task {own}; for {task} there are {TASK_MODELS[task]} and what "
            f"python -m fairseq_convattn --task {task} lists",
        )


def _fill(cfg: Namespace | DictConfig, values: dict) -> None:
    for name, value in values.items():
        if value is not None and getattr(cfg, name, None) is None:
            setattr(cfg, name, value)
