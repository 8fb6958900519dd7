"""Commands that end with the process that has started them."""

import os
import shlex
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from .durable import put_in_place

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_LAST_LINES = 20
_GRACE = 30.0  # seconds that a command has to end by itself
_ROOT = Path(__file__).resolve().parents[1]


class CommandFailed(Exception):
    """A command has failed; the message says in one line which, and where its log is."""


def exit_on_signals() -> None:
    """Leave in order when this process is ended, or its terminal closed (but under nohup).

    Only the main thread can ask for that; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    numbers = (signal.SIGHUP, signal.SIGTERM)

    def leave(number: int, _: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # a second one would cut short what the first began
        sys.exit(128 + number)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def run(words: Sequence[str], log: Path, output: Path | None = None, logs_too: bool = False) -> int:
    """Run a command that finds this Python's programs and this package, installed or not.

    Args:
        log: the file to which its output is appended.
        output: a file that gets its standard output instead, complete or not at all.
        logs_too: whether that file gets its standard error, too.

    Returns:
        The most memory that one of its processes had, in bytes.

    Raises:
        CommandFailed: it fails; its last lines are printed, unless the last one says why.
    """
    with open(log, "a", encoding="utf-8") as log_file:
        log_file.write(f"+ {shlex.join(words)}\n")
        log_file.flush()
        if output is None:
            return _run(words, log_file, log_file)
        partial = output.with_name(f"{output.name}.partial")
        with open(partial, "w", encoding="utf-8") as file:
            memory = _run(words, file, file if logs_too else log_file)
        put_in_place(partial, output)
        return memory


def _run(words: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
    with running(words, **streams, env=os.environ | _search_paths()) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        log = Path(stderr.name)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        if lines and lines[-1].startswith("error: "):
            raise CommandFailed(f"{lines[-1].removeprefix('error: ')} (log: {log})")
        print(*lines, sep="\n", file=sys.stderr)
        ended = "failed"
        if process.returncode < 0:
            ended = f"was killed by {signal.Signals(-process.returncode).name}"
        raise CommandFailed(f"{words[0]} {ended}; its log is {log}")
    return usage.ru_maxrss * 1024


def _search_paths() -> dict[str, str]:
    first = {"PATH": Path(sys.executable).parent}
    installed = (*site.getsitepackages(), site.getusersitepackages())
    if _ROOT not in (Path(folder).resolve() for folder in installed):
        first["PYTHONPATH"] = _ROOT  # a checkout
    return {
        name: os.pathsep.join(filter(None, (str(path), os.environ.get(name))))
        for name, path in first.items()
    }


@contextmanager
def running(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen]:
    """A command that gets SIGTERM, with all that it has started, if the block raises, and SIGKILL
    if it is still there 30 seconds later.

    It inherits what this process has open and lets be inherited, such as a folder's lock.

    Args:
        options: further ones for ``subprocess.Popen``.
    """
    process = None
    try:
        with _signals_deferred():
            process = subprocess.Popen(words, close_fds=False, start_new_session=True, **options)
        yield process
    except BaseException:
        if process:
            _end(process)
        raise


def _end(process: subprocess.Popen) -> None:
    """End a command: it and what it has started get SIGTERM, and SIGKILL if it does not end."""
    try:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    finally:
        if process.poll() is None:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen, number: int) -> None:
    with _signals_deferred(), suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defers signals until the block ends, so that no command is orphaned.

    A command would inherit a signal mask, so handlers are replaced instead. Python runs them in
    the main thread; in another one nothing is deferred.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
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
