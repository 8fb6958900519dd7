"""Processes that may be ended at any moment: forks of one that has imported everything.

A test session has threads, of OpenMP and of what tests have started, and a fork of it would hold
what they held for ever. multiprocessing's fork server has one thread, and costs a start of Python.
"""

import functools
import multiprocessing
import os
import pkgutil
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import conftest
import pytest
import torch._dynamo  # noqa: F401, the first optimizer imports it, which takes a second

import fairseq_convattn  # noqa: F401

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload([__name__])


def fork(work: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """Begin something quietly; its status is 0 unless it raises."""
    with pytest.MonkeyPatch.context() as environment:
        tests = Path(conftest.__file__).parent
        for folder in (tests, tests / "reliability"):
            environment.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        environment.setenv("PYTHONSAFEPATH", "1")  # the working directory has a package, too
        environment.setenv("OMP_NUM_THREADS", "1")
        process = _server.Process(target=_quietly, args=(work, *arguments), daemon=True)
        process.start()
    return process


def _quietly(work: Callable[..., Any], *arguments: Any) -> None:
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's & has ignored
    work(*arguments)


def fork_to(name: str, calls: int, work: Callable[[], Any]) -> BaseProcess:
    """Begin something, and return when it has made so many calls of a function, by its dotted
    name, and begins another.

    Raises:
        EOFError: it has ended before.
    """
    told, tell = _server.Pipe(duplex=False)
    process = fork(_tell, tell, name, calls, work)
    tell.close()
    with told:
        told.recv_bytes()
    return process


def _tell(tell: Connection, name: str, calls: int, work: Callable[[], Any]) -> None:
    owner, _, attribute = name.rpartition(".")
    function = pkgutil.resolve_name(name)
    left = iter(range(calls, -1, -1))

    @functools.wraps(function)
    def telling(*args, **kwargs):
        if next(left, None) == 0:
            tell.send_bytes(b"here")
        return function(*args, **kwargs)

    setattr(pkgutil.resolve_name(owner), attribute, telling)
    work()
