"""Files that are never half-written, even after a power failure."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def require_new(path: str | Path) -> None:
    """Check, before the work is done, that a file can be written without replacing one.

    Raises:
        FileExistsError: ``path`` exists.
        FileNotFoundError: its directory does not exist.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{path} is there already; it is not overwritten")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no directory {Path(path).parent}")


def require_no_links(paths: Iterable[Path], choice: str) -> None:
    """Check that nothing is read or written through a symbolic link, which can lead to any file.

    Args:
        choice: what the user chose the folder by.

    Raises:
        FileExistsError: a path is one.
    """
    for path in paths:
        if path.is_symlink():
            raise FileExistsError(
                f"{path} is a symbolic link, which can lead to any file; remove it or choose "
                f"another {choice} (which may itself be a link)"
            )


def entries(folder: Path, choice: str) -> list[Path]:
    """What is in a folder; nothing if there is none. A glob would skip one that cannot be listed.

    Args:
        choice: what the user chose the folder by.

    Raises:
        FileExistsError: it cannot be listed.
    """
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise FileExistsError(
            f"{folder} cannot be listed, so symbolic links in it are not seen; allow it "
            f"(chmod u+r) or choose another {choice}"
        ) from error


def everything_in(folder: Path, choice: str) -> Iterator[Path]:
    """:func:`entries` of a folder and of all folders in it, but not behind symbolic links."""
    for path in entries(folder, choice):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from everything_in(path, choice)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A place to write a file or a directory that appears at ``path`` complete or not at all.

    Raises:
        FileExistsError: ``path`` exists, or appeared before it was to be renamed.
        FileNotFoundError: its parent does not exist.
    """
    require_new(path)
    with TemporaryDirectory(dir=path.parent, prefix=".writing-") as directory:
        complete = Path(directory, path.name)
        yield complete
        put_in_place(complete, path, replace=False)


def put_in_place(complete: Path, path: Path, replace: bool = True) -> None:
    """Rename atomically and fsync: ``path`` is always whole, before and after.

    Raises:
        FileExistsError: ``path`` exists, and is not to be replaced.
    """
    for each in sorted(complete.rglob("*")):
        sync(each)
    sync(complete)
    if not replace:
        require_new(path)
    os.replace(complete, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems cannot fsync a folder
        if error.errno not in {errno.EINVAL, errno.ENOTSUP} or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
