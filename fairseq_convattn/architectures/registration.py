"""Registers models and their architectures with fairseq."""

import gc
import importlib.util
import logging
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import active_children
from typing import Any, NamedTuple, Self

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    MODEL_REGISTRY,
    register_model,
    register_model_architecture,
)
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from omegaconf import DictConfig, OmegaConf, open_dict

from ..mixers.options import refuse
from ..spelling import flag
from . import checks
from .config import Configuration, Schema, configure, given_values
from .dictionaries import check_types, subwords_of
from .layer_mixers import kept_layers, unread
from .presets import FAMILY_OPTIONS

logger = logging.getLogger(__name__)

TASK_MODELS = {
    "translation": "convattn",
    "summarization": "convattn",
    "language_modeling": "convattn_lm",
    "masked_lm": "convattn_mlm",
    "sentence_prediction": "convattn_mlm",
}
_SUBWORD_OPTIONS = {
    "sentencepiece": "--bpe sentencepiece --sentencepiece-model FILE",
    "subword_nmt": "--bpe subword_nmt --bpe-codes FILE",
}
_KINDS = {
    "convattn": "translation or summarization model",
    "convattn_lm": "language model",
    "convattn_mlm": "masked language model",
}


class ConfiguredModel:
    """Common base of our models: options, checks of checkpoints, garbage collection.

    Attributes:
        schema: the model's configuration and its rules.
    """

    schema: Schema
    _children = 0

    @classmethod
    def hub_models(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options without their defaults, so that a preset knows which were given."""
        gen_parser_from_dataclass(parser, cls.schema.config(), delete_default=True)

    def train(self, mode: bool = True) -> Self:
        """PyTorch's. Collects garbage after each evaluation and when workers were added: each
        epoch's data loader is in a reference cycle, and its workers keep memory alive."""
        if mode and not (self.training and len(active_children()) <= self._children):
            gc.collect()
            self._children = len(active_children())
        return super().train(mode)

    def prepare_for_inference_(self, cfg: DictConfig) -> None:
        """Called by fairseq's commands that decode. fairseq-interactive then skips and reports
        lines that are too long, instead of ending at the first one, and warns if it splits none."""
        if OmegaConf.select(cfg, "interactive.buffer_size"):
            cfg.dataset.skip_invalid_size_inputs_valid_test = True
            stack = self.encoder if hasattr(self, "encoder") else self.decoder
            if cfg.bpe is None and (kind := subwords_of(stack.dictionary)):
                logger.warning(
                    "the model reads subwords: give %s, unless the input is split already",
                    _SUBWORD_OPTIONS[kind],
                )
        super().prepare_for_inference_(cfg)

    def load_state_dict(
        self,
        state_dict: dict[str, Any],
        strict: bool = True,
        model_cfg: Namespace | DictConfig | None = None,
        args: Namespace | None = None,
    ) -> NamedTuple:
        """fairseq's, after a check of vocabulary sizes. It prunes each stack by itself, unless its
        weights were pruned before.

        Raises:
            ValueError: the weights have another vocabulary size.
        """
        check_types(self, state_dict)
        for side in self.schema.stacks:
            if getattr(model_cfg, f"{side}_layers_to_keep", None):
                state_dict = _pruned(state_dict, model_cfg, side)
        return super().load_state_dict(state_dict, strict)


def _pruned(weights: dict[str, Any], cfg: Namespace | DictConfig, side: str) -> dict[str, Any]:
    """The weights without the layers of a stack that ``cfg`` does not keep, numbered anew; all, if
    they lack these already.

    Raises:
        ValueError: they lack other layers.
    """
    layer = re.compile(rf"({side}\.(?:sentence_encoder\.)?layers)\.(\d+)\.(.+)")
    found = {name: layer.fullmatch(name) for name in weights}
    present = len({match[2] for match in found.values() if match})
    layers, kept = getattr(cfg, f"{side}_layers"), kept_layers(cfg, side)
    if present == len(kept):
        return weights
    if present != layers:
        refuse(
            f"{side}_layers_to_keep",
            f"the checkpoint has {present} of {layers} layers: it is pruned already",
        )
    numbers = {str(old): new for new, old in enumerate(kept)}
    return {
        f"{match[1]}.{numbers[match[2]]}.{match[3]}" if match else name: weights[name]
        for name, match in found.items()
        if not match or match[2] in numbers
    }


def register_family(name: str, model: type[ConfiguredModel], presets: dict[str, dict]) -> None:
    """Register a model and its architectures with fairseq.

    Args:
        presets: what each architecture sets.

    Raises:
        ImportError: another plugin has registered a model under that name.
    """
    if name in MODEL_REGISTRY:
        raise ImportError(f"another plugin has registered a fairseq model named {name!r}")
    schema = model.schema
    register_model(name, dataclass=schema.config)(model)
    for arch, preset in presets.items():
        register_model_architecture(name, arch)(_architecture(name, preset, schema))
    # The entry that fairseq adds for the model's own name sets nothing.
    ARCH_CONFIG_REGISTRY[name] = _architecture(name, {}, schema)


def warn_of_dropped_sentences(task: str | None, required_batch_size_multiple: int) -> None:
    """Warn that fairseq may drop sentences, unless the named task keeps them all."""
    keeps_all = getattr(TASK_REGISTRY.get(task), "keeps_every_sentence", False)
    if required_batch_size_multiple > 1 and not keeps_all:
        logger.warning(
            "fairseq silently drops the last batch of a data set unless its size is a "
            "multiple of %d; add --required-batch-size-multiple 1 to keep every sentence",
            required_batch_size_multiple,
        )


def _architecture(
    model: str, preset: dict, schema: Schema
) -> Callable[[Namespace | DictConfig], None]:
    """The function that fairseq calls for ``--arch``: with the command line's options before
    anything is loaded, and again with a stored or hydra configuration."""

    def apply(cfg: Namespace | DictConfig) -> None:
        if isinstance(cfg, DictConfig):
            if _is_complete(cfg, schema):
                return
            stored = (_start if _is_hydras(cfg, schema) else configure)(cfg, schema, preset).stored
            with open_dict(cfg):
                _fill(cfg, stored)
            return
        _train_bfloat16_without_tpu(cfg)
        _fill(cfg, _start(cfg, schema, preset, model).stored)
        multiple = getattr(cfg, "required_batch_size_multiple", 1)
        warn_of_dropped_sentences(getattr(cfg, "task", None), multiple)

    return apply


def own_value(cfg: Namespace | DictConfig, name: str) -> Any:
    """A field's value; None where a dataclass has a reference to another part of fairseq's
    configuration."""
    value = getattr(cfg, name, None)
    return None if str(value).startswith("${") else value


def set_missing(cfg: Namespace | DictConfig, name: str, value: Callable[[], Any]) -> None:
    """Set a field of a model's configuration, if unset, to the value that its task gives."""
    if own_value(cfg, name) is None:
        with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
            setattr(cfg, name, value())


def options_to_build(cfg: Namespace | DictConfig, schema: Schema) -> Namespace:
    """The values of all options of a model that is to be built.

    Raises:
        ValueError: an option cannot work; the message is one line and names it.
    """
    start = isinstance(cfg, DictConfig) and _is_hydras(cfg, schema)
    configuration = (_start if start else configure)(cfg, schema)
    # of hydra's, fairseq builds a copy; what the trainer stores is the parent's
    whole = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    stored = whole.get("model") if isinstance(whole, DictConfig) else None
    if isinstance(stored, DictConfig) and stored.get("_name") == cfg.get("_name"):
        with open_dict(stored):
            _fill(stored, configuration.stored)
    options = configuration.options
    options.checkpoint_activations |= options.offload_activations
    return options


def _start(
    cfg: Namespace | DictConfig, schema: Schema, preset: dict | None = None, model: str = ""
) -> Configuration:
    """Check a user's options; exit with a one-line message if they cannot work."""
    try:
        if model:
            check_task(model, cfg)
            if TASK_MODELS.get(getattr(cfg, "task", None)) == "convattn":
                checks.sentence_pairs(cfg)
        configuration = configure(cfg, schema, preset)
        checks.run(configuration.options, _training(cfg))
        unread_options = unread(configuration.options, schema.stacks)
        given = _given(cfg, schema)
        for name, reason in unread_options.items():
            if name in given:
                refuse(name, reason)
        for name in FAMILY_OPTIONS.intersection(preset or {}):
            if reason := unread_options.get(name):
                refuse("arch", f"it sets {flag(name)}, but {reason}; choose another architecture")
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    return configuration


def _training(cfg: Namespace | DictConfig) -> Namespace:
    """What :func:`checks.run` reads of the configuration that contains the model's."""
    places = {
        "task": ("task._name", None),
        "criterion": ("criterion._name", None),
        "fp16": ("common.fp16", False),
        "cpu": ("common.cpu", False),
        "distributed_world_size": ("distributed_training.distributed_world_size", 1),
        "ddp_backend": ("distributed_training.ddp_backend", ""),
        "best_checkpoint_metric": ("checkpoint.best_checkpoint_metric", "loss"),
        "eval_bleu": ("task.eval_bleu", None),
        "disable_validation": ("dataset.disable_validation", False),
    }
    training = Namespace()
    for name, (place, default) in places.items():
        if isinstance(cfg, DictConfig):
            value = OmegaConf.select(cfg._get_root(), place, default=default)
        else:
            value = getattr(cfg, name, default)
        setattr(training, name, value)
    return training


def _train_bfloat16_without_tpu(args: Namespace) -> None:
    """Unset ``tpu``, which fairseq sets with ``--bf16``, where torch_xla is not installed."""
    if getattr(args, "bf16", False) and importlib.util.find_spec("torch_xla") is None:
        args.tpu = False


def _is_hydras(cfg: DictConfig, schema: Schema) -> bool:
    """Whether a user wrote this hydra configuration.

    fairseq sets ``allow_objects`` on a checkpoint's, which may lack newer options; a command
    line's is complete by now."""
    return not (cfg._get_flag("allow_objects") or _is_complete(cfg, schema))


def _is_complete(cfg: Namespace | DictConfig, schema: Schema) -> bool:
    return schema.base.keys() <= given_values(cfg).keys()


def _given(cfg: Namespace | DictConfig, schema: Schema) -> set[str]:
    """The options that a user named; empty for a completed configuration, in which they cannot
    be told from those of a preset."""
    if _is_complete(cfg, schema):
        return set()
    default = schema.config()
    return {
        name for name, value in given_values(cfg).items() if value != getattr(default, name, None)
    }


def check_task(model: str, args: Namespace) -> None:
    """Check that the task, if it is one of ours, trains such models.

    Raises:
        ValueError: it does not; the message names those that do.
    """
    task = getattr(args, "task", None)
    if TASK_MODELS.get(task, model) != model:
        own = " and ".join(name for name in TASK_MODELS if TASK_MODELS[name] == model)
        refuse(
            "arch",
            f"{args.arch} is for --task {own}; 'convattn architectures --task {task}' lists those "
            f"for {task}",
        )


def require_task(model: str, task: FairseqTask) -> None:
    """Check that a model is built for a task that it can do.

    Raises:
        ValueError: the task is for other models of ours.
    """
    for name, other in TASK_MODELS.items():
        if other != model and isinstance(task, TASK_REGISTRY[name]):
            own = " or ".join(name for name in TASK_MODELS if TASK_MODELS[name] == model)
            by = ", as fairseq-eval-lm sets it" if name == "language_modeling" else ""
            raise ValueError(f"this is a {_KINDS[model]}: it needs --task {own}, not {name}{by}")


def _fill(cfg: Namespace | DictConfig, stored: dict) -> None:
    """Set the unset fields, so that a checkpoint describes its model whatever defaults become."""
    for name, value in stored.items():
        if value is not None and getattr(cfg, name, None) is None:
            setattr(cfg, name, value)
