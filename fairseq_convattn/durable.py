"""Files that are whole under their names, whenever the power fails."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def require_new(path: str | Path) -> None:
    """See that a file can be written without replacing one, before the work is done.

    Raises:
        FileExistsError: ``path`` is there already.
        FileNotFoundError: its directory is not there.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{path} is there already; it is not overwritten")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no directory {Path(path).parent}")


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Where to write a file or a directory, which appears at ``path`` complete or not at all.

    Raises:
        FileExistsError: ``path`` is there already, or appeared while it was written.
        FileNotFoundError: its parent is not there.
    """
    require_new(path)
    with TemporaryDirectory(dir=path.parent, prefix=".writing-") as directory:
        complete = Path(directory, path.name)
        yield complete
        require_new(path)
        put_in_place(complete, path)


def put_in_place(complete: Path, path: Path) -> None:
    """Give what is written its name: what is there before or afterwards is on the disk whole."""
    for each in sorted(complete.rglob("*")):
        sync(each)
    sync(complete)
    os.replace(complete, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have the disk hold a file's content, or the names of a folder's files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some mounts know no fsync of folders
        if error.errno not in {errno.EINVAL, errno.ENOTSUP} or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
