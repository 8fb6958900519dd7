"""What commands share: names of options, whole numbers, the modules that they need."""

import argparse
import importlib.util
from collections.abc import Callable, Sequence


def flag(option: str) -> str:
    """``--max-tokens`` for ``max_tokens``."""
    return f"--{option.replace('_', '-')}"


def whole_number(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least ``least``."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not '{text}'"
            )
        return int(text)

    return number


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
