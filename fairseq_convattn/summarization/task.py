"""fairseq's translation task for long sources and short targets."""

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

from fairseq import utils
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary, LanguagePairDataset, data_utils, encoders, iterators
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.models import FairseqModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import TASK_REGISTRY, register_task
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn

from ..scoring.checks import mask_unknowns
from ..scoring.rouge import ROUGE_TYPES, sentence_scores
from ..spelling import flag
from .clipping import ClippedDataset, clip, encode_prefix
from .ngram_blocking import NGramBlocker
from .options import (
    DECODING_DEFAULTS,
    SummarizationConfig,
    check_decoding,
    check_options,
    eval_rouge_args,
    eval_rouge_settings,
    json_options,
    require_eval_rouge,
)

logger = logging.getLogger(__name__)

_COUNT = "_rouge_count"
_STATE = "summarization"

if "summarization" in TASK_REGISTRY:
    raise ImportError("another plugin has registered a fairseq task named 'summarization'")


@register_task("summarization", dataclass=SummarizationConfig)
class SummarizationTask(TranslationTask):
    """Summarize texts: fairseq's translation task, with texts cut to length.

    A source becomes ``--source-prefix``, its first ``--max-source-tokens`` tokens and
    end-of-sentence, in fairseq-interactive too. Training and the validation loss see the first
    ``--max-target-tokens`` tokens of a target and end-of-sentence. Scores compare with the
    whole target. No sentence is dropped, whatever ``--required-batch-size-multiple``.

    ``--eval-rouge`` logs ``ROUGE_TYPES``: mean F1 in percent over the validation set, so
    ``--best-checkpoint-metric rougeL --maximize-best-checkpoint-metric`` keeps the best model.

    Raises:
        ImportError: ``--eval-rouge`` without rouge-score.
        ValueError: an option cannot work; the message names it.
    """

    cfg: SummarizationConfig
    keeps_every_sentence = True

    def __init__(self, cfg: SummarizationConfig, src_dict: Dictionary, tgt_dict: Dictionary):
        super().__init__(cfg, src_dict, tgt_dict)
        self.source_prefix = encode_prefix(cfg.source_prefix, src_dict)
        self._positions = (cfg.max_source_positions, cfg.max_target_positions)
        self._check_lengths()

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the task's options, and its defaults for fairseq's decoding options."""
        super().add_args(parser)
        parser.set_defaults(**DECODING_DEFAULTS)

    @classmethod
    def setup_task(cls, cfg: SummarizationConfig, **kwargs) -> "SummarizationTask":
        if not kwargs.get("from_checkpoint"):
            require_eval_rouge(cfg)
        check_options(cfg)
        return super().setup_task(cfg, **kwargs)

    def max_positions(self) -> tuple[int, int]:
        """Longest source and target, within what the models built so far can hold."""
        return self._positions

    @property
    def max_source_tokens(self) -> int:
        """Tokens kept of a source, end-of-sentence and prefix not counted."""
        room = self._positions[0] - 1 - len(self.source_prefix)
        return room if self.cfg.max_source_tokens is None else self.cfg.max_source_tokens

    @property
    def max_target_tokens(self) -> int:
        """Tokens kept of a target in training, end-of-sentence not counted."""
        room = self._positions[1] - 1
        return room if self.cfg.max_target_tokens is None else self.cfg.max_target_tokens

    def _check_lengths(self) -> None:
        kept = {
            "source": len(self.source_prefix) + self.max_source_tokens,
            "target": self.max_target_tokens,
        }
        for (side, tokens), positions in zip(kept.items(), self._positions, strict=True):
            if tokens + 1 > positions:
                prefix = " with those of --source-prefix" if side == "source" else ""
                raise ValueError(
                    f"--max-{side}-tokens: {tokens} tokens{prefix} and end-of-sentence do not "
                    f"fit into {positions} positions (--max-{side}-positions and the model's own)"
                )
        if self.max_source_tokens < 1:
            raise ValueError(
                f"--source-prefix: its {len(self.source_prefix)} tokens leave no room for a "
                f"source in {self._positions[0]} positions (--max-source-positions and the model's "
                "own)"
            )

    def build_model(
        self, cfg: FairseqDataclass | Namespace, from_checkpoint: bool = False
    ) -> FairseqModel:
        if self.cfg.eval_rouge and not from_checkpoint:
            sentence_scores("", [""])  # fails now, not after an epoch, if rouge-score is missing
        model = super().build_model(cfg, from_checkpoint)
        self._positions = utils.resolve_max_positions(self._positions, model.max_positions())
        self._check_lengths()
        if self.cfg.eval_rouge:
            self._rouge_detokenizer = encoders.build_tokenizer(
                Namespace(
                    tokenizer=self.cfg.eval_rouge_detok,
                    **json_options("--eval-rouge-detok-args", self.cfg.eval_rouge_detok_args),
                )
            )
            self._rouge_generator = self.build_generator([model], eval_rouge_args(self.cfg))
        return model

    def build_generator(
        self, models: Sequence[FairseqModel], args: Any, *further, **options
    ) -> nn.Module:
        """fairseq's generator, with n-gram blocking that works on every device.

        Raises:
            ValueError: minimum and maximum length or the n-gram size cannot work.
        """
        check_decoding(args, len(self.source_prefix) + 1, self._positions[1])
        generator = super().build_generator(models, args, *further, **options)
        size = getattr(args, "no_repeat_ngram_size", 0)
        if size and isinstance(generator, SequenceGenerator):
            generator.repeat_ngram_blocker = NGramBlocker(size, self.target_dictionary.eos())
        return generator

    def load_dataset(
        self,
        split: str,
        epoch: int = 1,
        combine: bool = False,
        task_cfg: FairseqDataclass | None = None,
        **kwargs,
    ) -> None:
        """Load a split with its texts cut.

        Args:
            task_cfg: the checkpoint's task, which only commands that evaluate give. They get
                whole targets, or none where there are none.

        Raises:
            ValueError: there are no targets to train on or to validate with.
        """
        super().load_dataset(split, epoch, combine, **kwargs)
        pair = self.datasets[split]
        evaluates = task_cfg is not None
        training_subsets = (self.cfg.train_subset, *self.cfg.valid_subset.split(","))
        if pair.tgt is None and split in training_subsets and not evaluates:
            raise ValueError(
                f"{split} has no targets ({self.cfg.target_lang}) in {self.cfg.data}, and "
                "training and validation need them; run fairseq-preprocess with both sides"
            )
        words = (self.cfg.source_prefix or "").split()
        source = ClippedDataset(pair.src, self.max_source_tokens, self.source_prefix, words)
        target, target_sizes = pair.tgt, pair.tgt_sizes
        if target is not None:
            clipped = ClippedDataset(target, self.max_target_tokens)
            target_sizes = clipped.sizes  # whole targets are only scored, so they limit no batch
            if split == self.cfg.train_subset and not evaluates:
                target = clipped
        cut = int((pair.src_sizes > self.max_source_tokens + 1).sum())
        logger.info(
            "%s: %d of %d sources cut to %d tokens", split, cut, len(pair), self.max_source_tokens
        )
        self.datasets[split] = LanguagePairDataset(
            source,
            source.sizes,
            self.src_dict,
            target,
            target_sizes,
            self.tgt_dict,
            left_pad_source=self.cfg.left_pad_source,
            left_pad_target=self.cfg.left_pad_target,
            shuffle=pair.shuffle,
            pad_to_multiple=pair.pad_to_multiple,
        )

    def build_dataset_for_inference(
        self,
        src_tokens: Sequence[Tensor],
        src_lengths: Sequence[int],
        constraints: Tensor | None = None,
    ) -> LanguagePairDataset:
        """Cut sources of any length and add the prefix. ``src_lengths`` is not used."""
        clipped = [clip(text, self.max_source_tokens, self.source_prefix) for text in src_tokens]
        return super().build_dataset_for_inference(clipped, list(map(len, clipped)), constraints)

    def get_batch_iterator(self, *args, **kwargs) -> iterators.EpochBatchIterator:
        """fairseq's, with ``required_batch_size_multiple`` 1; otherwise fairseq would drop a last
        batch whose size is not a multiple."""
        kwargs["required_batch_size_multiple"] = 1
        return super().get_batch_iterator(*args, **kwargs)

    def valid_step(
        self, sample: dict[str, Any], model: FairseqModel, criterion: FairseqCriterion
    ) -> tuple[Tensor, int, dict[str, Any]]:
        if sample["target"] is None:
            raise ValueError("validation needs targets; fairseq-generate works without them")
        cut = self._with_clipped_targets(sample, self.max_target_tokens)
        loss, sample_size, logging_output = super().valid_step(cut, model, criterion)
        if self.cfg.eval_rouge:
            logging_output.update(self._rouge_sums(sample, model))
        return loss, sample_size, logging_output

    def inference_step(
        self, generator: nn.Module, models: Sequence[nn.Module], sample: dict, *args, **kwargs
    ) -> list:
        """fairseq's. ``--score-reference`` scores as much of a target as the positions hold."""
        if isinstance(generator, SequenceScorer) and sample["target"] is not None:
            sample = self._with_clipped_targets(sample, self._positions[1] - 1)
        return super().inference_step(generator, models, sample, *args, **kwargs)

    def _with_clipped_targets(self, sample: dict, tokens: int) -> dict:
        """The batch with at most ``tokens`` of every target, end-of-sentence not counted."""
        if sample["target"].size(1) <= tokens + 1:
            return sample
        pad = self.tgt_dict.pad()
        targets = [clip(utils.strip_pad(target, pad), tokens) for target in sample["target"]]
        batch = partial(
            data_utils.collate_tokens,
            targets,
            pad,
            left_pad=self.cfg.left_pad_target,
            pad_to_multiple=self.cfg.required_seq_len_multiple,
        )
        net_input = {**sample["net_input"], "prev_output_tokens": batch(move_eos_to_beginning=True)}
        ntokens = sum(map(len, targets))
        return {**sample, "target": batch(), "net_input": net_input, "ntokens": ntokens}

    def _rouge_sums(self, sample: dict, model: nn.Module) -> dict[str, float]:
        """Sums over a batch: the mean must not depend on the split into batches and workers."""
        hypotheses = self.inference_step(self._rouge_generator, [model], sample)
        pairs = [
            (
                self._text(best["tokens"]),
                mask_unknowns(
                    self._text(utils.strip_pad(target, self.tgt_dict.pad()), escape_unk=True)
                ),
            )
            for (best, *_), target in zip(hypotheses, sample["target"], strict=True)
        ]
        if self.cfg.eval_rouge_print_samples:
            logger.info("example hypothesis: %s", pairs[0][0])
            logger.info("example reference: %s", pairs[0][1])
        settings = eval_rouge_settings(self.cfg)
        scores = [
            sentence_scores(hypothesis, [reference], settings) for hypothesis, reference in pairs
        ]
        sums = {
            _sum_of(name): sum(score[name].fmeasure for score in scores) for name in ROUGE_TYPES
        }
        return {**sums, _COUNT: len(scores)}

    def _text(self, tokens: Tensor, escape_unk: bool = False) -> str:
        text = self.tgt_dict.string(
            tokens.int().cpu(), self.cfg.eval_rouge_remove_bpe, escape_unk=escape_unk
        )
        return self._rouge_detokenizer.decode(text) if self._rouge_detokenizer else text

    def reduce_metrics(
        self, logging_outputs: Sequence[dict[str, Any]], criterion: FairseqCriterion
    ) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        sums = {
            key: float(sum(log.get(key, 0) for log in logging_outputs))
            for key in (_COUNT, *map(_sum_of, ROUGE_TYPES))
        }
        if sums[_COUNT]:
            for key, value in sums.items():
                metrics.log_scalar_sum(key, value)
            for name in ROUGE_TYPES:
                metrics.log_derived(name, partial(_mean_percent, name))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), _STATE: self._source_options()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Warn if the checkpoint was trained on differently prepared sources."""
        trained = state_dict.get(_STATE, self._source_options())
        for name, value in self._source_options().items():
            if trained.get(name, value) != value:
                logger.warning(
                    "the checkpoint was trained with %s %s, but here it is %s",
                    flag(name),
                    *("unset" if x is None else repr(x) for x in (trained[name], value)),
                )
        super().load_state_dict({k: v for k, v in state_dict.items() if k != _STATE})

    def _source_options(self) -> dict[str, Any]:
        return {name: getattr(self.cfg, name) for name in ("source_prefix", "max_source_tokens")}


def _sum_of(name: str) -> str:
    return f"_{name}_sum"


def _mean_percent(name: str, meters) -> float:
    return round(100 * meters[_sum_of(name)].sum / meters[_COUNT].sum, 2)
