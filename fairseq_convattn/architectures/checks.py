"""Checks for options of models that cannot work together, and for half-written sentence pairs."""

import os
from argparse import Namespace
from functools import partial
from typing import Any

import torch
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.indexed_dataset import dataset_exists

from ..mixers import MixerConfig
from ..mixers.config import OPTIONS, may_read
from ..mixers.options import refuse
from ..spelling import flag

_CUTOFFS = ("adaptive_softmax_cutoff", "adaptive_input_cutoff")
_FACTORS = ("adaptive_softmax_factor", "adaptive_input_factor")
_DIMENSIONS = ("decoder_output_dim", "decoder_input_dim")
_OUTPUT = ("decoder_output_dim", "decoder_embed_dim")
_LEARNED = ("encoder_learned_pos", "decoder_learned_pos")
# fairseq puts no projection before the output
_TYING = ("share_all_embeddings", "share_decoder_input_output_embed", "tie_adaptive_weights")
_SHARING = ("share_encoder_layers", "share_tables_across_layers")
_DDP = ("pytorch_ddp", "c10d")  # PyTorch's: it allows one gradient per parameter and update
_PLAIN_CRITERIA = ("cross_entropy", "label_smoothed_cross_entropy")  # and what starts so
_OTHER_ARCHITECTURES = {  # of tasks that fairseq's transformer does not fit either
    "multilingual_translation": "multilingual_transformer; or use translation_multi_simple_epoch",
    "translation_lev": "cmlm_transformer",
}


def encoder_decoder(options: Namespace) -> None:
    """Raise a one-line ValueError if options of an encoder-decoder contradict each other."""
    if options.tie_adaptive_weights and options.adaptive_softmax_cutoff:
        refuse("tie_adaptive_weights", "needs adaptive input, which only language models have")
    for option in ("share_all_embeddings", "cross_self_attention"):
        if getattr(options, option):
            _need_equal(options, option, "encoder_embed_dim", "decoder_embed_dim")
    if not options.adaptive_softmax_cutoff:
        for option in _TYING:
            if getattr(options, option):
                _need_equal(options, option, *_OUTPUT)
        if options.merge_src_tgt_embed:  # the encoder's table is the output's too
            _need_equal(options, "merge_src_tgt_embed", "decoder_output_dim", "encoder_embed_dim")


def language_model(options: Namespace) -> None:
    """Raise a one-line ValueError if options of a language model contradict each other."""
    if options.character_embeddings and options.adaptive_input:
        refuse("character_embeddings", "mutually exclusive with --adaptive-input")
    if options.adaptive_input and options.adaptive_input_cutoff is None:
        refuse(
            "adaptive_input",
            "needs --adaptive-input-cutoff, such as 20000,60000, or the value false",
        )
    if options.share_decoder_input_output_embed:
        for option in ("character_embeddings", "adaptive_input"):
            if getattr(options, option):
                refuse(
                    "share_decoder_input_output_embed", f"mutually exclusive with {flag(option)}"
                )
        _need_equal(options, "share_decoder_input_output_embed", *_DIMENSIONS)
    if options.tie_adaptive_weights:
        if not (options.adaptive_input and options.adaptive_softmax_cutoff):
            refuse(
                "tie_adaptive_weights",
                "needs --adaptive-input and --adaptive-softmax-cutoff, or the value false",
            )
        for pair in (_CUTOFFS, _FACTORS, _DIMENSIONS, _OUTPUT):
            _need_equal(options, "tie_adaptive_weights", *pair)


def output_dictionary(options: Namespace, source_types: int, target_types: int) -> None:
    """Raise a one-line ValueError if a language model shares tables of unequal dictionaries."""
    for option in ("tie_adaptive_weights", "share_decoder_input_output_embed"):
        if getattr(options, option) and source_types != target_types:
            refuse(option, "mutually exclusive with --output-dictionary-size")
    if options.adaptive_input:
        clusters("adaptive_input", options, "decoder_input_dim", source_types)


def clusters(option: str, options: Namespace, dim: str, types: int) -> None:
    """Raise a one-line ValueError if the clusters of an adaptive input or softmax do not fit the
    dictionary or the width.

    Args:
        option: ``adaptive_input`` or ``adaptive_softmax``.
        dim: the option that has the width of the first cluster.
    """
    cutoffs = getattr(options, f"{option}_cutoff")
    if not cutoffs:
        return
    if cutoffs[-1] > types:
        refuse(f"{option}_cutoff", f"{cutoffs[-1]} is beyond the dictionary's {types} types")
    factor = getattr(options, f"{option}_factor")
    number = len(cutoffs) + (cutoffs[-1] < types)
    if getattr(options, dim) // factor ** (number - 1) < 1:
        refuse(f"{option}_factor", f"{factor:g} leaves the last of {number} clusters no channel")


def masked_language_model(options: Namespace) -> None:
    """Raise a one-line ValueError if options of a masked language model contradict each other."""
    if options.initialization != "default":
        refuse("initialization", "must be default: masked language models start as RoBERTa does")
    if options.share_encoder_layers:
        _sharing(options.encoder_mixers)


def _sharing(mixers: list[MixerConfig]) -> None:
    names = sorted({mixer.mixer for mixer in mixers})
    if len(names) > 1:
        refuse("share_encoder_layers", f"needs one mixer for all layers, not {', '.join(names)}")
    sizes = {mixer.kernel_size for mixer in mixers}
    if len(sizes) > 1 and may_read(names[0], OPTIONS["kernel_size"]):
        refuse("share_encoder_layers", "needs one value of --encoder-kernel-sizes, such as 31")


def run(options: Namespace, training: Namespace) -> None:
    """Raise a one-line ValueError if the training's options do not fit the model's.

    Args:
        options: the model's.
        training: fairseq's ``task``, ``criterion``, ``fp16``, ``cpu``, ``distributed_world_size``,
            ``ddp_backend``, ``best_checkpoint_metric``, ``eval_bleu`` and ``disable_validation``.
    """
    task = training.task
    if task in _OTHER_ARCHITECTURES:
        refuse("task", f"{task} needs an --arch such as {_OTHER_ARCHITECTURES[task]}")
    if training.fp16 and training.cpu:
        refuse("fp16", "needs a GPU; with --cpu use --bf16")
    if options.quant_noise_scalar:
        _scalar_noise(options, training.cpu)
    if hasattr(options, "encoder_mixers") and getattr(options, "adaptive_input", False):
        refuse("adaptive_input", "only language models support adaptive input")
    _processes(options, training.distributed_world_size, training.ddp_backend)
    _criterion(options, task, training.criterion)
    if training.best_checkpoint_metric == "bleu" and not training.disable_validation:
        # None: a task without the option, which may have a metric of that name
        if training.eval_bleu is False and task != "summarization":
            refuse("best_checkpoint_metric", "bleu needs --eval-bleu")


def _processes(options: Namespace, distributed_world_size: int, ddp_backend: str) -> None:
    if getattr(options, "base_layers", 0) and distributed_world_size == 1:
        refuse("base_layers", "needs several processes; set --distributed-world-size")
    for option in (name for name in _SHARING if getattr(options, name, False)):
        if ddp_backend == "fully_sharded":
            refuse(option, "FSDP would not share: --ddp-backend must not be fully_sharded")
        recomputed = options.checkpoint_activations or options.offload_activations
        if recomputed and distributed_world_size > 1 and ddp_backend in _DDP:
            refuse(option, "with checkpointed activations it needs --ddp-backend legacy_ddp")


def _criterion(options: Namespace, task: str | None, criterion: str | None) -> None:
    cutoffs = getattr(options, "adaptive_softmax_cutoff", None)
    is_plain = (criterion or "").startswith(_PLAIN_CRITERIA)
    if criterion == "adaptive_loss" and not cutoffs:
        refuse("criterion", "adaptive_loss needs --adaptive-softmax-cutoff")
    if task == "masked_lm" and is_plain:
        refuse("criterion", f"{criterion} does not count the masked tokens alone; use masked_lm")
    if cutoffs and is_plain:
        refuse(
            "criterion",
            f"{criterion} cannot train an adaptive softmax; use adaptive_loss with "
            "--ddp-backend legacy_ddp",
        )


def sentence_pairs(training: Namespace) -> None:
    """Raise a one-line ValueError if a subset that fairseq-train reads has no target language, as
    after an interrupted fairseq-preprocess. Of several data folders the first counts."""
    folder = (getattr(training, "data", None) or "").split(os.pathsep)[0]
    if not os.path.isdir(folder) or not hasattr(training, "train_subset"):  # not fairseq-train's
        return
    source, target = (getattr(training, f"{side}_lang", None) for side in ("source", "target"))
    if source is None or target is None:
        source, target = infer_language_pair(folder)
    subsets = [training.train_subset]
    subsets += [] if training.disable_validation else training.valid_subset.split(",")
    exists = partial(dataset_exists, impl=training.dataset_impl)
    for subset in subsets:
        names = [
            f"{folder}/{subset}.{pair}" for pair in (f"{source}-{target}", f"{target}-{source}")
        ]
        name = next((name for name in names if exists(f"{name}.{source}")), None)
        if name and not exists(f"{name}.{target}"):
            raise ValueError(
                f"{folder} has {subset} in {source}, but not in {target}; delete the folder and "
                "run fairseq-preprocess with both"
            )


def _scalar_noise(options: Namespace, cpu: bool) -> None:
    sides = [getattr(options, name) for name in _LEARNED if hasattr(options, name)]
    learned = any(sides) if sides else True  # masked language models always learn theirs
    if learned and not options.no_token_positional_embeddings:
        refuse(
            "quant_noise_scalar",
            "fairseq cannot quantise learned positions; add --no-token-positional-embeddings true",
        )
    if cpu or not torch.cuda.is_available():
        refuse("quant_noise_scalar", "needs a GPU")


def _need_equal(options: Namespace, option: str, first: str, second: str) -> None:
    values: list[Any] = [getattr(options, name) for name in (first, second)]
    if values[0] != values[1]:
        refuse(option, f"needs equal {flag(first)} and {flag(second)}")
