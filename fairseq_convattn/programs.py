"""What the plugin changes in fairseq's own programs: early checks of options, errors in one line,
fewer warnings. fairseq imports the plugin before it reads its options.
"""

import ast
import difflib
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY

from .architectures.registration import check_task, warn_of_dropped_sentences
from .checkpoints.files import is_ours
from .mixers import MIXERS
from .ops.attention import TERMS
from .program_errors import report
from .training_options import has_subwords, option_of, values_of

PROGRAMS = {
    f"fairseq-{name}" for name in ("train", "generate", "interactive", "eval-lm", "validate")
}
# These drop sentences whatever the model; fairseq-train is checked with its --arch.
DROPPING = {"fairseq-generate", "fairseq-validate"}
_PRINTING_TEXT = {"fairseq-generate", "fairseq-interactive", "fairseq-eval-lm"}
PACKAGE = Path(__file__).resolve().parent
# Warnings of hydra and torch to the authors of fairseq, useless to users.
DEPRECATED = (r"hydra(\.|$)", r"fairseq\.tasks\.fairseq_task$")
USELESS = (
    r"\s*'config' is validated against ConfigStore schema",
    "'pin_memory' argument is set as true but no accelerator is found",
)
_OF_LIGHTCONV = {
    "--encoder-conv-type": "--encoder-mixers",
    "--decoder-conv-type": "--decoder-mixers",
    "--encoder-kernel-size-list": "--encoder-kernel-sizes",
    "--decoder-kernel-size-list": "--decoder-kernel-sizes",
    "--weight-softmax": "--weight-norm",
}
_VALUES_OF_LISTS = {
    **dict.fromkeys(("--encoder-kernel-sizes", "--decoder-kernel-sizes"), r"\d+"),
    **dict.fromkeys(("--encoder-mixers", "--decoder-mixers"), "|".join(MIXERS)),
    "--attention-terms": "|".join(TERMS),
}
_SKIPPED = re.compile(r"(\S+) samples have invalid sizes .* max_positions=(\d+)")


def install(arguments: Sequence[str]) -> None:
    """Prepare a program of fairseq's; any other is left alone.

    Args:
        arguments: ``sys.argv``, the program first.

    Raises:
        SystemExit: an option cannot work; the message names it.
    """
    logging.getLogger("fairseq.tasks.fairseq_task").addFilter(refuse_a_partial_score)
    name, options = Path(*arguments[:1]).name, arguments[1:]
    if name not in PROGRAMS:
        return
    sys.excepthook = report
    sys.unraisablehook = but_of_half_opened_data
    logging.getLogger("hydra").setLevel(logging.INFO)
    if not sys.warnoptions:  # -W and PYTHONWARNINGS take precedence
        for module in DEPRECATED:
            warnings.filterwarnings("ignore", module=module)
        for message in USELESS:
            warnings.filterwarnings("ignore", message)
    check_options(options)
    _refuse_values(options)
    if name == "fairseq-train":
        refuse_another_task(options)
        require_arch_and_optimizer(options)
    else:
        _require(options, "--path", "the checkpoint")
    if name in _PRINTING_TEXT:
        _refuse_subwords(name, options)
    if name in DROPPING:
        _warn_of_dropped_sentences(options)


def check_options(options: Sequence[str]) -> None:
    """Exit where argparse's message would not help: with the most similar architecture, with our
    name of an option of fairseq's lightconv, or with commas between the values of a list.

    An unknown architecture is left to another plugin that is the ``--user-dir``: it may register it
    after importing this one.
    """
    given = values_of(options, "--arch", "--user-dir")
    if is_ours(given.arch):
        _refuse_options_of_lightconv(options)
        _refuse_spaces(options)
    of_others = Path(given.user_dir or "").name != PACKAGE.name
    if given.arch in {None, *ARCH_MODEL_REGISTRY} or of_others:
        return
    words = sorted(given.arch.split("_"))
    swapped = [name for name in ARCH_MODEL_REGISTRY if sorted(name.split("_")) == words]
    close = swapped or difflib.get_close_matches(given.arch, ARCH_MODEL_REGISTRY, n=1)
    way_out = f"did you mean {close[0]}?" if close else "'convattn architectures' lists them"
    raise SystemExit(f"error: --arch: there is no {given.arch}; {way_out}")


def require_arch_and_optimizer(options: Sequence[str]) -> None:
    """Exit where fairseq-train, without one of them, would end in a traceback. Other plugins may
    have defaults, so this one must be the ``--user-dir``."""
    given = values_of(options, "--arch", "--user-dir")
    if Path(given.user_dir or "").name != PACKAGE.name or _asks_for_help(options):
        return
    if given.arch is None:
        raise SystemExit(
            "error: give --arch, for example dynamic_conv_tiny; 'convattn architectures' lists them"
        )
    _require(options, "--optimizer", "for example adam")


def _require(options: Sequence[str], name: str, value: str) -> None:
    """Exit where fairseq, without an option, would end in a traceback."""
    given = {option_of(word) for word in options}
    if name not in given and not _asks_for_help(options):
        raise SystemExit(f"error: give {name}, {value}")


def refuse_another_task(options: Sequence[str]) -> None:
    """Exit with the architecture's tasks, where argparse would complain of options that
    fairseq-train's ``--task`` lacks."""
    given = values_of(options, "--arch", "--task", task="translation")
    if is_ours(given.arch) and given.task and not _asks_for_help(options):
        try:
            check_task(ARCH_MODEL_NAME_REGISTRY[given.arch], given)
        except ValueError as error:
            raise SystemExit(f"error: {error}") from None


def _warn_of_dropped_sentences(options: Sequence[str]) -> None:
    names = "--task", "--required-batch-size-multiple"
    given = values_of(options, *names, task="translation", required_batch_size_multiple="8")
    multiple = given.required_batch_size_multiple or ""
    if multiple.isdecimal() and not _asks_for_help(options):
        warn_of_dropped_sentences(given.task, int(multiple))


def _asks_for_help(options: Sequence[str]) -> bool:
    return not {"-h", "--help"}.isdisjoint(options)


def _refuse_options_of_lightconv(options: Sequence[str]) -> None:
    for option in map(option_of, options):
        if ours := _OF_LIGHTCONV.get(option):
            raise SystemExit(f"error: {option}: an option of fairseq's lightconv; give {ours}")


def _refuse_values(options: Sequence[str]) -> None:
    given = values_of(options, "--beam", "--model-overrides", model_overrides="{}")
    if re.fullmatch(r"-\d+|0+", given.beam or ""):
        raise SystemExit(f"error: --beam: must be at least 1, not {given.beam}")
    try:
        is_dictionary = isinstance(ast.literal_eval(given.model_overrides), dict)
    except (SyntaxError, TypeError, ValueError):
        is_dictionary = given.model_overrides is None  # argparse says that a value is missing
    if not is_dictionary:
        raise SystemExit(
            "error: --model-overrides: must be like \"{'max_target_positions': 8192}\", "
            f"not {given.model_overrides!r}"
        )


def _refuse_subwords(program: str, options: Sequence[str]) -> None:
    """Exit where fairseq would end in a traceback once the model is loaded, or, in fairseq-eval-lm,
    look for subwords that end in the option's very text."""
    names = [x for x in map(option_of, options) if x in ("--remove-bpe", "--post-process")]
    if not names or _asks_for_help(options):
        return
    name = names[-1]  # they are one option of fairseq's
    (value,) = vars(values_of(options, name)).values()
    if program == "fairseq-eval-lm" and value != "@@ ":
        subwords = "subword_nmt" if value is None else repr(value)
        raise SystemExit(
            f"error: {name}: fairseq-eval-lm cannot join {subwords}; give '@@ ', with its space, "
            "for subword-nmt's, or leave it out"
        )
    if not has_subwords(value):
        raise SystemExit(
            f"error: {name}: fairseq has no {value!r}; give sentencepiece or subword_nmt"
        )


def _refuse_spaces(options: Sequence[str]) -> None:
    for number, word in enumerate(options):
        option, _, first = word.partition("=")
        if allowed := _VALUES_OF_LISTS.get(option):
            values = [first.strip(",")] if first else []
            for value in options[number + 1 :]:
                parts = filter(None, value.split(","))
                if not all(re.fullmatch(allowed, x) for x in parts) or os.path.exists(value):
                    break
                values += filter(None, [value.strip(",")])
            if len(values) > 1:
                raise SystemExit(f"error: {option}: no spaces: {','.join(values)}")


def refuse_a_partial_score(record: logging.LogRecord) -> bool:
    """A log filter that ends fairseq-eval-lm where it says that it skips a part of the text, whose
    perplexity it would not print.

    Raises:
        SystemExit: it would skip something.
    """
    skipped = _SKIPPED.match(record.getMessage())
    called = (frame.f_code.co_name for frame, _ in traceback.walk_stack(None))
    if skipped and "eval_lm_dataloader" in called:
        samples, positions = skipped.groups()
        raise SystemExit(
            f"error: fairseq-eval-lm would skip {samples} samples, which are longer than the "
            f"model's {positions} positions: score shorter ones (--tokens-per-sample {positions}, "
            "--sample-break-mode none or eos) or, unless positions are learned, lift the limit "
            "(--model-overrides \"{'max_target_positions': 8192}\")"
        )
    return True


def but_of_half_opened_data(unraisable: "sys.UnraisableHookArgs") -> None:
    """``sys.unraisablehook``: not what fairseq's index raises when it is freed after its file could
    not be opened."""
    if "'_bin_buffer_mmap'" not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)
