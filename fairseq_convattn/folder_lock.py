"""One run at a time writes to a folder."""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_SECONDS_TO_END = 10


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, as do commands that share what this process has open.

    They may outlive this process and keep others out. One that ends in order waits until what
    they had started has ended, so that the next run can begin at once.

    Raises:
        BlockingIOError: another run holds it.
    """
    path = folder / "lock"
    with open(path, "w") as lock:
        if not _take(lock) or not _is_at(path, lock):
            raise BlockingIOError(
                f"another run is writing to {folder}; wait for it or choose another with --output"
            )
        os.set_inheritable(lock.fileno(), True)
        try:
            yield
        finally:
            lock.close()
            _wait_until_free(path)


def _wait_until_free(path: Path) -> None:
    end = time.monotonic() + _SECONDS_TO_END
    # NFS locks for one process alone only what that may write to
    with suppress(OSError), open(path, "r+") as lock:
        while not _take(lock):
            if time.monotonic() > end:
                print(f"note: {path.parent} is still in use by a command", file=sys.stderr)
                return
            time.sleep(0.05)


def _take(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: TextIO) -> bool:
    """Whether it is still there: a run that was refused may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
