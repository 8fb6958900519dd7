"""What commands share: whole numbers, the modules that they need."""

import argparse
import importlib.util
from collections.abc import Callable


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number, ``least`` or more."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not '{text}'"
            )
        return int(text)

    return number


def missing_modules(*names: str) -> str | None:
    """Those that are not installed, and how to install them; None if all are."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    packages = " ".join(missing).replace("_", "-")
    return f"{' and '.join(missing)}: pip install {packages}" if missing else None
