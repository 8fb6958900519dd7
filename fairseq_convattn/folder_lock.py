"""One run at a time writes to a folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

# PyTorch's data loaders look every five seconds whether the process that started them lives
_SECONDS_TO_END = 10


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, as commands do that are started with ``close_fds=False``.

    They may outlive this process and keep others out; if it ends in order, it waits for what is
    left of them, so that the next run need not.

    Raises:
        BlockingIOError: another run holds it.
    """
    path = folder / "lock"
    with open(path, "w") as lock, open(path) as seen_from_outside:
        if not _take(lock):
            raise BlockingIOError(
                f"another run is writing to {folder}; wait for it or choose another with --output"
            )
        os.set_inheritable(lock.fileno(), True)
        try:
            yield
        finally:
            lock.close()
            end = time.monotonic() + _SECONDS_TO_END
            while not _take(seen_from_outside) and time.monotonic() < end:
                time.sleep(0.05)


def _take(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
