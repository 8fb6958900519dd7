"""What the pickle of a checkpoint would call, read without calling it."""

import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .checks import CheckpointError, is_zip

_MARK = object()
_LEGACY = ("magic number", "protocol", "system", "content", "storages")
"""The pickles at the beginning of a file of torch 1.5 or older."""


def check_memory(path: str | Path) -> None:
    """Check that every tensor's memory is read from the file. torch would also make tensors of any
    size by themselves, whose values are what this process had in memory.

    Raises:
        CheckpointError: it is not.
    """
    try:
        if is_zip(path):
            with zipfile.ZipFile(path) as archive:
                for record in archive.infolist():  # by name torch finds any of equal ones
                    if record.filename.lower().endswith("data.pkl"):
                        list(_storages(archive.open(record)))
            return
        with open(path, "rb") as file:
            found = {part: set(_storages(file)) for part in _LEGACY[:-1]}
            stored = {text for _, text, _ in pickletools.genops(file) if isinstance(text, str)}
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(f"its pickle is damaged ({error})") from error
    if not found["content"] <= stored:
        raise CheckpointError("it has tensors without values")


def _storages(pickle: IO[bytes]) -> Iterator[str]:
    """The names of the storages that a pickle refers to.

    Raises:
        CheckpointError: it makes tensors or storages by itself.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for code, argument, _ in pickletools.genops(pickle):
        if code.name.endswith("PUT"):
            memo[argument] = stack[-1]
        elif code.name.endswith("GET"):
            stack.append(memo[argument])
        elif code.name == "MARK":
            stack.append(_MARK)
        else:
            taken = _taken(stack, code)
            if code.name == "BINPERSID":
                yield taken[0][2]
            if code.name in ("REDUCE", "NEWOBJ") and str(taken[0]).endswith(("Tensor", "Storage")):
                raise CheckpointError(f"it makes a {taken[0].replace(' ', '.')} without values")
            stack += [_made(code, argument, taken)] * len(code.stack_after)


def _taken(stack: list[Any], code: pickletools.OpcodeInfo) -> list[Any]:
    """What an instruction takes from the stack, the last one last."""
    count, taken = len(code.stack_before), []
    if pickletools.markobject in code.stack_before:
        count = code.stack_before.index(pickletools.markobject)
        while (value := stack.pop()) is not _MARK:
            taken.append(value)
    taken += [stack.pop() for _ in range(count)]
    return taken[::-1]


def _made(code: pickletools.OpcodeInfo, argument: Any, taken: list[Any]) -> Any:
    """What it leaves there: a text or a tuple; None for all else."""
    if code.name.endswith(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")):
        return tuple(taken)
    return argument if isinstance(argument, str) else None
