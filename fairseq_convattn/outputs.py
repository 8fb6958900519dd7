"""What commands share: whole numbers, the modules that they need, new files."""

import argparse
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from .checkpoints.files import require_new


def whole_number(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number, ``least`` or more."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {least} on")
        return int(text)

    return number


def missing_modules(*names: str) -> str | None:
    """Those that are not installed, and how to install them; None if all are."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    packages = " ".join(missing).replace("_", "-")
    return f"{' and '.join(missing)}: pip install {packages}" if missing else None


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Where to write a file or a directory, which appears at ``path`` complete or not at all.

    Raises:
        FileExistsError: ``path`` is there already.
        FileNotFoundError: its parent is not there.
    """
    require_new(path)
    with TemporaryDirectory(dir=path.parent, prefix=".writing-") as directory:
        complete = Path(directory, path.name)
        yield complete
        require_new(path)
        os.replace(complete, path)
