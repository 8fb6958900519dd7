"""The options of the task, their defaults and their checks."""

import json
from argparse import Namespace
from dataclasses import Field, dataclass, field, fields
from typing import Any, Optional

from fairseq.data.encoders import TOKENIZER_REGISTRY
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from ..scoring.rouge import ROUGE_TYPES, RougeSettings
from ..spelling import flag
from ..training_options import has_subwords

DECODING_DEFAULTS = {
    "min_len": 10,
    "max_len_a": 0,
    "max_len_b": 200,
    "no_repeat_ngram_size": 3,
    "lenpen": 1.0,
}
"""Defaults of fairseq-generate's options, and of ``--eval-rouge-args``.

Minimum, blocked trigrams (Paulus et al. 2018, section 2.5) and length penalty are those of
fairseq's BART for XSum's summaries of one sentence (``examples/bart/summarize.py``). The maximum
is fairseq's own."""

_JSON_TYPES = {int: (int,), float: (int, float), bool: (bool,)}


@dataclass
class SummarizationConfig(TranslationConfig):
    max_source_tokens: Optional[int] = field(
        default=None,
        metadata={
            "help": "cut sources to their first N tokens, end-of-sentence and --source-prefix not "
            "counted (default: to what --max-source-positions holds)"
        },
    )
    max_target_tokens: Optional[int] = field(
        default=None,
        metadata={
            "help": "train and compute the loss on the first N tokens of a summary, "
            "end-of-sentence not counted; scores compare with the whole summary "
            "(default: what --max-target-positions holds)"
        },
    )
    source_prefix: Optional[str] = field(
        default=None,
        metadata={"help": "tokens (subwords) to put before every source, with blanks between"},
    )
    eval_rouge: bool = field(
        default=False, metadata={"help": "summarize the validation set and compute ROUGE"}
    )
    eval_rouge_args: Optional[str] = field(
        default="{}",
        metadata={
            "help": "options of fairseq-generate for --eval-rouge, as JSON: "
            '\'{"beam": 4, "lenpen": 2.0}\''
        },
    )
    eval_rouge_detok: str = field(
        default="space",
        metadata={
            "help": "detokenize with this tokenizer before computing ROUGE, e.g. moses "
            "(default: space)"
        },
    )
    eval_rouge_detok_args: Optional[str] = field(
        default="{}", metadata={"help": "options of the tokenizer, as JSON"}
    )
    eval_rouge_remove_bpe: Optional[str] = field(
        default=None,
        metadata={
            "help": "join subwords before computing ROUGE; like --remove-bpe of fairseq-generate",
            "argparse_const": "@@ ",
        },
    )
    eval_rouge_split: str = field(
        default="newline",
        metadata={
            "help": "where sentences end for ROUGE-Lsum in --eval-rouge: newline (fairseq's texts "
            "have none), punctuation (. ! or ? before a space) or a marker that the data has "
            "between sentences, such as <q> (default: newline)"
        },
    )
    eval_rouge_print_samples: bool = field(
        default=False, metadata={"help": "print a summary of each validation batch"}
    )
    valid_subset: str = II("dataset.valid_subset")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")


def own_options() -> list[Field]:
    """The options that the translation task does not have."""
    theirs = {option.name for option in fields(TranslationConfig)}
    return [x for x in fields(SummarizationConfig) if x.name not in theirs and "help" in x.metadata]


def check_options(cfg: SummarizationConfig) -> None:
    """Raise a one-line ValueError that names the option, if an option cannot work."""
    for name in ("max_source_tokens", "max_target_tokens"):
        value = getattr(cfg, name)
        if value is not None and value < 1:
            raise ValueError(f"{flag(name)}: must be at least 1, not {value}")
    for name in ("load_alignments", "num_batch_buckets"):
        if getattr(cfg, name):
            raise ValueError(f"{flag(name)}: summarization cuts texts and does not support it")
    if cfg.eval_bleu:
        raise ValueError("--eval-bleu: it would score against cut references; use --eval-rouge")
    metric = cfg.best_checkpoint_metric
    if metric == "bleu":
        raise ValueError(
            "--best-checkpoint-metric bleu: summarization scores no BLEU; use "
            f"--eval-rouge and one of {', '.join(ROUGE_TYPES)}"
        )
    if metric.lower().startswith("rouge") and metric not in ROUGE_TYPES:
        raise ValueError(
            f"--best-checkpoint-metric {metric}: must be one of {', '.join(ROUGE_TYPES)}"
        )
    if metric in ROUGE_TYPES and not cfg.eval_rouge:
        raise ValueError(f"--best-checkpoint-metric {metric} needs --eval-rouge")
    if metric in ROUGE_TYPES and not cfg.maximize_best_checkpoint_metric:
        raise ValueError(
            f"--best-checkpoint-metric {metric} needs --maximize-best-checkpoint-metric, or "
            "fairseq keeps the model with the lowest"
        )
    if cfg.eval_rouge:
        if not has_subwords(cfg.eval_rouge_remove_bpe):
            raise ValueError(
                f"--eval-rouge-remove-bpe: fairseq has no {cfg.eval_rouge_remove_bpe}; give "
                "sentencepiece, subword_nmt, wordpiece or letter"
            )
        shortest_source = len((cfg.source_prefix or "").split()) + 1
        args = eval_rouge_args(cfg)
        try:
            check_decoding(args, shortest_source, cfg.max_target_positions)
        except ValueError as error:
            raise ValueError(f"--eval-rouge-args: {error}") from None
        eval_rouge_settings(cfg)
        json_options("--eval-rouge-detok-args", cfg.eval_rouge_detok_args)
        if cfg.eval_rouge_detok not in TOKENIZER_REGISTRY:
            raise ValueError(
                f"--eval-rouge-detok: fairseq has no tokenizer {cfg.eval_rouge_detok}; it has "
                + ", ".join(sorted(TOKENIZER_REGISTRY))
            )


def require_eval_rouge(cfg: SummarizationConfig) -> None:
    """Raise ValueError if an option of ``--eval-rouge`` is given without it."""
    for option in own_options():
        given = getattr(cfg, option.name) != option.default
        if option.name.startswith("eval_rouge_") and given and not cfg.eval_rouge:
            raise ValueError(f"{flag(option.name)} needs --eval-rouge")


def eval_rouge_args(cfg: SummarizationConfig) -> Namespace:
    given = json_options("--eval-rouge-args", cfg.eval_rouge_args)
    types = {option.name: option.type for option in fields(GenerationConfig)}
    unknown = given.keys() - types.keys()
    if unknown:
        raise ValueError(
            f"--eval-rouge-args: {', '.join(sorted(unknown))} is not an option of "
            "fairseq-generate; names have underscores, such as no_repeat_ngram_size"
        )
    if given.get("score_reference"):
        raise ValueError("--eval-rouge-args: score_reference would score the references")
    for name, value in given.items():
        expected = types[name]
        if expected in _JSON_TYPES and type(value) not in _JSON_TYPES[expected]:
            raise ValueError(
                f"--eval-rouge-args: {name} is {json.dumps(value)}, but takes {expected.__name__}"
            )
    return Namespace(**{**DECODING_DEFAULTS, **given})


def eval_rouge_settings(cfg: SummarizationConfig) -> RougeSettings:
    try:
        return RougeSettings(split=cfg.eval_rouge_split)
    except ValueError as error:
        raise ValueError(f"--eval-rouge-split: {error}") from None


def json_options(option: str, text: Optional[str]) -> dict[str, Any]:
    try:
        options = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"{option}: {text} is not JSON ({error})") from None
    if not isinstance(options, dict):
        raise ValueError(f'{option}: must be a JSON object, such as {{"beam": 4}}, not {text}')
    return options


def check_decoding(args: Any, shortest_source: int, target_positions: int) -> None:
    """Raise ValueError if no summary can have the lengths that are asked for.

    Args:
        args: fairseq-generate's options.
        shortest_source: tokens of the shortest source, end-of-sentence included.
        target_positions: longest target, end-of-sentence included.
    """
    if getattr(args, "beam", 1) < 1:
        raise ValueError(f"--beam: must be at least 1, not {args.beam}")
    size = getattr(args, "no_repeat_ngram_size", 0)
    if size < 0:
        raise ValueError(f"--no-repeat-ngram-size: {size} is negative; 0 blocks nothing")
    shortest = getattr(args, "min_len", 1)
    factor, addend = getattr(args, "max_len_a", 0), getattr(args, "max_len_b", 200)
    longest = int(factor * shortest_source + addend)
    if shortest > min(longest, target_positions - 1):
        raise ValueError(
            f"--min-len: no summary has {shortest} tokens or more with at most {longest} "
            f"for a source of {shortest_source} (--max-len-a, --max-len-b) and "
            f"{target_positions} positions (--max-target-positions and the model's own)"
        )
