"""What commands share: how they end, whole numbers, the modules they need."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .child_processes import exit_on_signals
from .spelling import printable


@contextmanager
def one_line_errors(*errors: type[Exception]) -> Iterator[None]:
    """End the process with one line after one of these errors or an OSError, silently where nobody
    reads its output, and in order on signals."""
    exit_on_signals()
    try:
        yield
    except BrokenPipeError:  # as after head; what is buffered goes nowhere
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, *errors) as error:
        text = " ".join(filter(None, map(str.strip, str(error).splitlines())))
        if isinstance(error, OSError) and error.strerror and error.filename:
            names = (x for x in (error.filename, error.filename2) if x)
            names = (os.fsdecode(x) if isinstance(x, bytes) else str(x) for x in names)
            text = f"{' -> '.join(names)}: {error.strerror}"
        sys.exit(f"error: {printable(text) or type(error).__name__}")


def whole_number(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least ``least``."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not '{text}'"
            )
        return int(text)

    return number


def seed_number(text: str) -> int:
    """An argparse type: a seed of fairseq-train, which adds the number of the epoch to it."""
    seed = whole_number(1)(text)
    if seed >= 2**31:
        raise argparse.ArgumentTypeError(f"must be below 2**31, not {seed}")
    return seed


def at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before ``--``, and those after it, which are fairseq-train's."""
    split = [*arguments, "--"].index("--")
    return [*arguments[:split]], [*arguments[split + 1 :]]


def missing_modules(*names: str) -> str | None:
    """Which of these modules are missing, and how to install them; None if all are installed."""
    missing = [
        name.replace("sklearn", "scikit-learn")
        for name in names
        if importlib.util.find_spec(name) is None
    ]
    packages = " ".join(missing).replace("_", "-")
    return f"{' and '.join(missing)}: pip install {packages}" if missing else None
