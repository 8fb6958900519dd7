"""Commands that end with the process that has started them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def exit_on_signals() -> None:
    """Leave in order when this process is ended, or its terminal closed (but under nohup)."""
    numbers = (signal.SIGHUP, signal.SIGTERM)

    def leave(number: int, _: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # a second one would cut short what the first began
        sys.exit(128 + number)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


@contextmanager
def running(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """A command that gets SIGTERM, with all that it has started, if the block raises.

    It shares what this process has open and lets be inherited, as the lock of a folder.

    Args:
        options: further ones for ``subprocess.Popen``.
    """
    process = None
    try:
        with _signals_held_back():
            process = subprocess.Popen(words, close_fds=False, start_new_session=True, **options)
        yield process
    except BaseException:
        if process:
            with _signals_held_back(), suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        raise


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Have them come when the block is over, as one between a command's start and its being known
    here, or before it is ended, would leave it behind. A command would inherit a mask."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)
