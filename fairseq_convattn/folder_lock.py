"""A lock, so that one run at a time writes to a folder."""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from .durable import everything_in, require_no_links

_SECONDS_TO_END = 10


@contextmanager
def locked(folder: Path, *own: str) -> Iterator[None]:
    """Hold the lock of a folder, made if need be, that is empty or has one of the files ``own``.

    Child processes inherit it, so they keep other runs out if this process is killed. When the
    block ends, waits for them, so that the next run can begin at once. The file ``lock`` stays.

    Raises:
        BlockingIOError: another run holds the lock.
        FileExistsError: the folder has files of something else, or a symbolic link, or one in it
            cannot be listed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # others may have packed the folder
    require_no_links(everything_in(folder, "--output"), "--output")
    begun = {"lock", *(f"{name}.partial" for name in own)}
    files = {file.name for file in folder.iterdir()} - begun
    if files and files.isdisjoint(own):
        raise FileExistsError(
            f"{folder} has files that are not of a run; choose another with --output"
        )
    path = folder / "lock"
    with open(path, "a+", encoding="ascii") as lock:
        if not _take(lock):
            lock.seek(0)
            raise BlockingIOError(
                f"another run is writing to {folder} ({lock.read() or 'of an unknown process'}); "
                "wait for it or choose another with --output"
            )
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {os.uname().nodename}")
        lock.flush()
        os.set_inheritable(lock.fileno(), True)
        try:
            yield
        finally:
            lock.close()
            _wait_until_free(path)


def _wait_until_free(path: Path) -> None:
    end = time.monotonic() + _SECONDS_TO_END
    with suppress(OSError), open(path, "r+") as lock:  # NFS locks only files opened for writing
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
