"""Errors of fairseq's programs in one line that says what to do.

fairseq does not catch exceptions. This prints one line for some of them; all others keep their
traceback.
"""

import difflib
import itertools
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from .architectures.hub import beyond_limit
from .spelling import printable
from .training_options import option_of, values_of

_PACKAGE = Path(__file__).resolve().parent
_BINARISED = "; give the folder that fairseq-preprocess wrote (its --destdir)"
_WRITTEN = ("--save-dir", "--results-path", "--tensorboard-logdir", "--log-file")
_NO_TARGETS = "missing 1 required positional argument: 'prev_output_tokens'"
_WRAPPER = "Cannot load model parameters from checkpoint"  # fairseq raises it around any exception


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """``sys.excepthook``: one line for what this package raises and for missing files."""
    for cause in causes(error):
        line = _one_line(cause)
        if line:
            print(f"error: {printable(line)}", file=sys.stderr)
            return
    text = "".join(traceback.format_exception(kind, error, trace)).removesuffix("\n")
    print(*map(printable, text.split("\n")), sep="\n", file=sys.stderr)


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
    if isinstance(error, ValueError | TimeoutError | FileExistsError) and _was_raised_here(error):
        return " ".join(text.split())
    not_opened = isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError)
    if not_opened and isinstance(error.filename, str | bytes):
        return _not_opened(error)
    if text.endswith(_NO_TARGETS) and _lacks_targets(error):
        return (
            "a subset has sentences of the source language alone; run fairseq-preprocess with both"
        )
    if sizes := beyond_limit(text):
        return f"a sample has {sizes[0]} tokens, the model takes {sizes[1]}: {_shorter_samples()}"
    found = ((line, pattern.search(text)) for pattern, line in _LINES.items())
    return next((line(match) for line, match in found if match), None)


def _not_opened(error: OSError) -> str | None:
    """What to say of a file that the command line names."""
    path = Path(os.fsdecode(error.filename))
    if not _was_named(path):
        return None
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder; give one of its files"
    if isinstance(error, NotADirectoryError):
        file = next(x for x in (path, *path.parents) if x.exists())
        written = any(_is_value(option, x) for option in _WRITTEN for x in (path, *path.parents))
        return f"{file} is a file, not a folder{'' if written else _BINARISED}"
    return _missing(path)


def _lacks_targets(error: BaseException) -> bool:
    """Whether the error is of a batch of fairseq's language pairs without targets."""
    samples = (frame.f_locals.get("sample") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(sample, dict) and sample.get("target", 0) is None for sample in samples)


def _missing_subset(subset: str, path: Path) -> str:
    """What to say of a subset that is not there.

    Args:
        path: the data folder; in it the subset, where the task is not translation.
    """
    folder = path if path.is_dir() else path.parent
    parts = [file.name.split(".") for file in folder.glob("*.bin")]
    present = {
        f"{first} ({second})" if more and path is folder else first
        for first, second, *more in parts
    }
    there = f"; it has {', '.join(sorted(present))}" if present else ""
    return f"{folder} has no subset {subset} for these options{there}"


def _shorter_samples() -> str:
    """What a command line can do about samples that are too long."""
    program, task = Path(sys.argv[0]).name, values_of(sys.argv[1:], "--task", task="").task
    is_language_model = task == "language_modeling"
    if program == "fairseq-generate" and is_language_model and not _is_given("--sample-break-mode"):
        return "give --sample-break-mode eos"
    limits = "--max-source-positions or --max-target-positions"
    if program == "fairseq-train":
        limits = "--tokens-per-sample" if is_language_model or task == "masked_lm" else limits
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


def _needing_a_gpu() -> str:
    """What a command line can do without a GPU."""
    halves = [x for x in ("--fp16", "--amp", "--memory-efficient-fp16") if _is_given(x)]
    if halves:
        return f"{halves[0]} needs one; on a CPU leave it out or give --bf16"
    return "--profile needs one; leave it out" if _is_given("--profile") else "on a CPU give --cpu"


def _no_language_model() -> str:
    """What to say of a model that a language model's task cannot train or score."""
    if Path(sys.argv[0]).name != "fairseq-train":
        return "the checkpoint is not a language model, and fairseq-eval-lm scores only these"
    for option in ("--self-target", "--past-target"):
        if _is_given(option):
            return f"the model predicts the next token only: leave out {option}"
    return "--arch is no language model: --task language_modeling needs one with _lm in its name"


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
    return any(Path(x.f_code.co_filename).resolve().is_relative_to(_PACKAGE) for x in last)


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
    way_out = _BINARISED if is_data else ""
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


def _other_weights(found: re.Match) -> str | None:
    reason = textwrap.shorten(found.string, 200, placeholder=" ...")
    way_out = _fitting_options()
    return way_out and f"the checkpoint does not fit the model's options: {way_out} ({reason})"


def _no_block(found: re.Match) -> str | None:
    if not _is_given("--context-window"):
        return None
    return "--context-window must be shorter than a block (--tokens-per-sample)"


_LINES: dict[re.Pattern, Callable[[re.Match], str | None]] = {
    # of fairseq
    re.compile(r"(?s)^Model file not found: (.*)"): (
        lambda found: _missing_checkpoint(Path(found[1]))
    ),
    re.compile(r"^--finetune-from-model (.+) does not exist$"): (
        lambda found: _missing_checkpoint(Path(found[1]))
    ),
    re.compile(r"^Dataset not found: (\S+) \((.+)\)"): (
        lambda found: _missing_subset(found[1], Path(found[2]))
    ),
    re.compile(r"^Could not infer language pair"): lambda found: (
        "the data folder has no sentence pairs; give the folder that fairseq-preprocess wrote "
        "(its --destdir), or --source-lang and --target-lang where it has dictionaries alone; "
        "with a language model give --task language_modeling"
    ),
    re.compile(
        "has no attribute 'supported_targets'$|^Unsupported language modeling target"
    ): lambda found: _no_language_model(),
    re.compile(r"^world size is \d+ but have 0 available devices"): lambda found: (
        "there is no GPU for several workers; on CPUs start them with torchrun --nproc-per-node N "
        "-m fairseq_convattn.launch DATA ... instead of fairseq-train"
    ),
    re.compile(r"^(Criterion|Optimizer) does not match; "): lambda found: (
        f"the checkpoint is of a training with another {found[1].lower()} or precision: repeat its "
        "options, or begin the optimizer anew with --reset-optimizer"
    ),
    re.compile(r"^file (.+) not found$"): lambda found: f"there is no {found[1]}",  # its subwords'
    # of Python, torch and sentencepiece
    re.compile(r"^Torch not compiled with CUDA enabled|^Found no NVIDIA driver"): lambda found: (
        f"there is no GPU, or torch does not see it: {_needing_a_gpu()}"
    ),
    re.compile(r"^cannot mmap an empty file$"): lambda found: (
        "a binarised file is empty: its text was (fairseq-preprocess printed '0 sents'), or "
        "the copy is incomplete"
    ),
    re.compile(r"^[Ss]entences lengths should not exceed max_tokens=(\d+)"): lambda found: (
        f"a sample has more than the {found[1]} tokens of a batch: raise --max-tokens (in a recipe "
        "--device-batch)"
    ),
    re.compile(r"^float division$|^negative dimensions are not allowed$"): _no_block,
    re.compile(r"^Error\(s\) in loading state_dict"): _other_weights,
    re.compile(r"could not parse ModelProto from (.+)"): lambda found: (
        f"{found[1]} is not a SentencePiece model; give the .model file"
    ),
    re.compile(r'"(.+)": Is a directory'): lambda found: (
        f"{found[1]} is a folder; give one of its files"
    ),
}
