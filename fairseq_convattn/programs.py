"""What the plugin changes in fairseq's own programs: errors in one line, fewer warnings.

fairseq imports the plugin before it reads its options, and does not catch exceptions. So the plugin
checks ``--arch`` itself, and prints one line for some exceptions. All others keep their traceback.
"""

import difflib
import itertools
import logging
import os
import re
import sys
import textwrap
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY

from .architectures.hub import beyond_limit
from .architectures.registration import check_task, warn_of_dropped_sentences
from .checkpoints.files import is_ours
from .training_options import option_of

PROGRAMS = {
    f"fairseq-{name}" for name in ("train", "generate", "interactive", "eval-lm", "validate")
}
# These drop sentences whatever the model; fairseq-train is checked with its --arch.
DROPPING = {"fairseq-generate", "fairseq-validate"}
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
_NO_CHECKPOINT = "Model file not found: "
_OTHER_WEIGHTS = "Error(s) in loading state_dict"
_OTHER_TARGETS = "Unsupported language modeling target"
_NO_BLOCK = ("float division", "negative dimensions are not allowed")
_NO_PAIR = "Could not infer language pair"
_NO_SUBSET = re.compile(r"Dataset not found: (\S+) \((.+)\)")
_NO_TEXT = "cannot mmap an empty file"
_NO_PIECES = re.compile(r"could not parse ModelProto from (.+)")
_NO_FILE = re.compile(r"file (.+) not found")  # of fairseq's subwords
_NO_FIRST_MODEL = re.compile(r"--finetune-from-model (.+) does not exist")
_NO_TARGETS = "missing 1 required positional argument: 'prev_output_tokens'"
_SKIPPED = re.compile(r"(\S+) samples have invalid sizes .* max_positions=(\d+)")
_WRAPPER = "Cannot load model parameters from checkpoint"  # fairseq raises it around any exception


def install(arguments: Sequence[str]) -> None:
    """Prepare a program of fairseq's; any other is left alone.

    Args:
        arguments: ``sys.argv``, the program first.

    Raises:
        SystemExit: ``--arch`` is mistyped or for another task, or an option is fairseq's
            lightconv's.
    """
    logging.getLogger("fairseq.tasks.fairseq_task").addFilter(refuse_a_partial_score)
    if not arguments or Path(arguments[0]).name not in PROGRAMS:
        return
    sys.excepthook = report
    sys.unraisablehook = but_of_half_opened_data
    logging.getLogger("hydra").setLevel(logging.INFO)
    if not sys.warnoptions:  # -W and PYTHONWARNINGS take precedence
        for module in DEPRECATED:
            warnings.filterwarnings("ignore", module=module)
        for message in USELESS:
            warnings.filterwarnings("ignore", message)
    check_options(arguments[1:])
    if Path(arguments[0]).name == "fairseq-train":
        require_arch(arguments[1:])
        refuse_another_task(arguments[1:])
    if Path(arguments[0]).name in DROPPING:
        _warn_of_dropped_sentences(arguments[1:])


def check_options(options: Sequence[str]) -> None:
    """Exit where argparse's message would not help: with the most similar architecture, or with our
    name of an option of fairseq's lightconv. An unknown architecture is left to another plugin that
    is the ``--user-dir``: it may register it after importing this one."""
    given = _given(options, "--arch", "--user-dir")
    if is_ours(given.arch):
        _refuse_options_of_lightconv(options)
    of_others = Path(given.user_dir or "").name != PACKAGE.name
    if given.arch in {None, *ARCH_MODEL_REGISTRY} or of_others:
        return
    words = sorted(given.arch.split("_"))
    swapped = [name for name in ARCH_MODEL_REGISTRY if sorted(name.split("_")) == words]
    close = swapped or difflib.get_close_matches(given.arch, ARCH_MODEL_REGISTRY, n=1)
    way_out = f"did you mean {close[0]}?" if close else "'convattn architectures' lists them"
    raise SystemExit(f"error: --arch: there is no {given.arch}; {way_out}")


def require_arch(options: Sequence[str]) -> None:
    """Exit where fairseq-train, without an architecture, would end in an empty RuntimeError. Other
    plugins may have a default, so this one must be the ``--user-dir``."""
    given = _given(options, "--arch", "--user-dir")
    is_user_dir = Path(given.user_dir or "").name == PACKAGE.name
    if is_user_dir and given.arch is None and not _asks_for_help(options):
        raise SystemExit(
            "error: give --arch, for example dynamic_conv_tiny; 'convattn architectures' lists them"
        )


def refuse_another_task(options: Sequence[str]) -> None:
    """Exit with the architecture's tasks, where argparse would complain of options that
    fairseq-train's ``--task`` lacks."""
    given = _given(options, "--arch", "--task", task="translation")
    if is_ours(given.arch) and given.task and not _asks_for_help(options):
        try:
            check_task(ARCH_MODEL_NAME_REGISTRY[given.arch], given)
        except ValueError as error:
            raise SystemExit(f"error: {error}") from None


def _warn_of_dropped_sentences(options: Sequence[str]) -> None:
    names = "--task", "--required-batch-size-multiple"
    given = _given(options, *names, task="translation", required_batch_size_multiple="8")
    multiple = given.required_batch_size_multiple or ""
    if multiple.isdecimal() and not _asks_for_help(options):
        warn_of_dropped_sentences(given.task, int(multiple))


def _given(options: Sequence[str], *names: str, **defaults: str) -> Namespace:
    """The values of some options, else ``defaults`` or None. An option without a value, which
    fairseq refuses, has None."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(name, *(["-a"] if name == "--arch" else ()), nargs="?")
    parser.set_defaults(**defaults)
    return parser.parse_known_args(options)[0]


def _asks_for_help(options: Sequence[str]) -> bool:
    return not {"-h", "--help"}.isdisjoint(options)


def _refuse_options_of_lightconv(options: Sequence[str]) -> None:
    for option in map(option_of, options):
        if ours := _OF_LIGHTCONV.get(option):
            raise SystemExit(f"error: {option}: an option of fairseq's lightconv; give {ours}")


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


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """``sys.excepthook``: one line for what this package raises and for missing files."""
    for cause in causes(error):
        line = _one_line(cause)
        if line:
            print(f"error: {line}", file=sys.stderr)
            return
    sys.__excepthook__(kind, error, trace)


def but_of_half_opened_data(unraisable: "sys.UnraisableHookArgs") -> None:
    """``sys.unraisablehook``: not what fairseq's index raises when it is freed after its file could
    not be opened."""
    if "'_bin_buffer_mmap'" not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and its causes, the first cause first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        wrapped = error.__context__ if str(error).startswith(_WRAPPER) else None
        error = error.__cause__ or wrapped
    return reversed(chain)


def _one_line(error: BaseException) -> str | None:
    """The line to print instead of a traceback; None to keep the traceback."""
    text = str(error)
    if isinstance(error, ValueError | TimeoutError) and _was_raised_here(error):
        return " ".join(text.split())
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str | bytes):
        path = Path(os.fsdecode(error.filename))
        return _missing(path) if _was_named(path) else None
    if isinstance(error, IsADirectoryError) and isinstance(error.filename, str | bytes):
        path = Path(os.fsdecode(error.filename))
        return f"{path} is a folder; give one of its files" if _was_named(path) else None
    if isinstance(error, OSError) and text.startswith(_NO_CHECKPOINT):
        return _missing_checkpoint(Path(text.removeprefix(_NO_CHECKPOINT)))
    if text.startswith(_OTHER_WEIGHTS) and (way_out := _fitting_options()):
        reason = textwrap.shorten(text, 200, placeholder=" ...")
        return f"the checkpoint does not fit the model's options: {way_out} ({reason})"
    if text in _NO_BLOCK and _is_given("--context-window"):
        return "--context-window must be shorter than a block (--tokens-per-sample)"
    no_targets = isinstance(error, AttributeError) and text.endswith("'supported_targets'")
    if no_targets or text.startswith(_OTHER_TARGETS):
        return "the checkpoint is not a language model, and fairseq-eval-lm scores only these"
    if text.endswith(_NO_TARGETS) and _lacks_targets(error):
        return (
            "a subset has sentences of the source language alone; run fairseq-preprocess with both"
        )
    if found := _NO_FIRST_MODEL.fullmatch(text):
        return _missing_checkpoint(Path(found[1]))
    if found := _NO_FILE.fullmatch(text):
        return f"there is no {found[1]}"
    if text == _NO_TEXT:
        return (
            "a binarised file is empty: its text was (fairseq-preprocess printed '0 sents'), or "
            "the copy is incomplete"
        )
    if found := _NO_SUBSET.match(text):
        return _missing_subset(found[1], Path(found[2]))
    if sizes := beyond_limit(text):
        return f"a sample has {sizes[0]} tokens, the model takes {sizes[1]}: {_shorter_samples()}"
    if found := _NO_PIECES.search(text):
        return f"{found[1]} is not a SentencePiece model; give the .model file"
    if text.startswith(_NO_PAIR):
        return (
            "the data folder has no sentence pairs; give the folder that fairseq-preprocess wrote "
            "(its --destdir), or --source-lang and --target-lang where it has dictionaries alone; "
            "with a language model give --task language_modeling"
        )
    return None


def _lacks_targets(error: BaseException) -> bool:
    """Whether the error is of a batch of fairseq's language pairs without targets."""
    samples = (frame.f_locals.get("sample") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(sample, dict) and sample.get("target", 0) is None for sample in samples)


def _missing_subset(subset: str, path: Path) -> str:
    """What to say of a subset that is not there.

    Args:
        path: the data folder; in it the subset, where the task is not translation.
    """
    folder, kept = (path, 2) if path.is_dir() else (path.parent, 1)
    present = {".".join(file.name.split(".")[:kept]) for file in folder.glob("*.bin")}
    there = f"; it has {', '.join(sorted(present))}" if present else ""
    return f"{folder} has no subset {subset} for these options{there}"


def _shorter_samples() -> str:
    """What a command line can do about samples that are too long."""
    program, is_language_model = Path(sys.argv[0]).name, "language_modeling" in sys.argv
    if program == "fairseq-generate" and is_language_model and not _is_given("--sample-break-mode"):
        return "give --sample-break-mode eos"
    limits = "--max-source-positions or --max-target-positions"
    if program == "fairseq-train":
        limits = "--tokens-per-sample" if is_language_model else limits
        return f"raise {limits}, or leave such samples out: --skip-invalid-size-inputs-valid-test"
    return "shorten the text, or leave such samples out: --skip-invalid-size-inputs-valid-test"


def _fitting_options() -> str | None:
    """What a command line can do about weights that do not fit."""
    if _is_given("--model-overrides"):
        return "leave out what --model-overrides says of the model's shape"
    if Path(sys.argv[0]).name == "fairseq-eval-lm":
        return "repeat the options of its --task, such as --output-dictionary-size"
    if Path(sys.argv[0]).name != "fairseq-train":
        return None
    for option in ("--finetune-from-model", "--restore-file"):
        if _is_given(option):
            return f"repeat --arch and the options of the model that {option} names"
    return "choose a new --save-dir, or repeat --arch and the options of its training"


def _is_given(option: str) -> bool:
    return option in map(option_of, sys.argv[1:])


def _is_value(option: str, path: Path) -> bool:
    """Whether the command line gives the path as an option's value."""
    words = sys.argv[1:]
    values = [after for word, after in itertools.pairwise(words) if word == option]
    values += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return path in map(Path, values)


def _was_raised_here(error: BaseException) -> bool:
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    return any(Path(x.f_code.co_filename).resolve().is_relative_to(PACKAGE) for x in last)


def _was_named(path: Path) -> bool:
    """Whether a path is, or lies in, one that the command line names."""
    words = [*sys.argv[1:], *(word.partition("=")[2] for word in sys.argv[1:])]
    parts = [part for word in words for part in word.split(os.pathsep) if part]
    return any(path.resolve().is_relative_to(Path(part).resolve()) for part in parts)


def _missing(path: Path) -> str:
    if path.name == "dict.txt" and _is_given("--lm-path"):
        return f"there is no {path}; --lm-path needs its model's dict.txt in the data folder"
    if path.name == "dict.txt" and any(path.parent.glob("dict.*.txt")):
        return _sentence_pairs(path.parent)
    others = sorted(file.name.split(".")[1] for file in path.parent.glob("dict.*.txt"))
    if path.name.startswith("dict.") and others:
        return f"there is no {path}; the folder has the languages {', '.join(others)}"
    is_data = path.name.startswith("dict.") or not path.suffix and not _is_value("--input", path)
    way_out = "; give the folder that fairseq-preprocess wrote (its --destdir)" if is_data else ""
    missing = path if path.parent.is_dir() else path.parent
    return f"there is no {missing}{way_out}"


def _sentence_pairs(folder: Path) -> str:
    """What to say of a folder of pairs where a text is needed."""
    if Path(sys.argv[0]).name == "fairseq-eval-lm":
        return (
            f"{folder} has sentence pairs, and fairseq-eval-lm scores no translation models; a "
            "language model needs the folder that fairseq-preprocess --only-source wrote"
        )
    return (
        f"{folder} has sentence pairs; the task needs the folder that "
        "fairseq-preprocess --only-source wrote"
    )


def _missing_checkpoint(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no checkpoint {path}: no folder {path.parent}"
    names = sorted(file.name for file in path.parent.glob("*.pt"))
    close = difflib.get_close_matches(path.name, names, n=1)
    present = f"{path.parent.absolute()} has {', '.join(names) or 'none'}"
    return f"there is no checkpoint {path}; {f'did you mean {close[0]}?' if close else present}"
