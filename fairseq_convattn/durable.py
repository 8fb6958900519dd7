"""Files that are whole under their names, whenever the power fails."""

import os
from pathlib import Path


def put_in_place(complete: Path, path: Path) -> None:
    """Give a written file its name: what is there before or afterwards is on the disk whole."""
    sync(complete)
    os.replace(complete, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have the disk hold a file's content, or the names of a folder's files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
