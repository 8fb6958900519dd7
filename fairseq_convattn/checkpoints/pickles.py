"""What torch would make of a checkpoint's pickles, read without making it.

``torch.load(weights_only=True)`` trusts a file to make ordinary tensors, which have values and lie
within their memory.
"""

import pickle
import pickletools
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, NoReturn

import torch

from .checks import CheckpointError, is_zip, once_per_version

_MARK, _MADE, _OTHER = object(), object(), object()
_BEFORE_CONTENT = 3  # pickles of a file of torch 1.5 or older: magic number, protocol, system
_ARGUMENTS = {"torch._utils _rebuild_tensor": 4, "torch._utils _rebuild_tensor_v2": 6}
_OF_TORCH = {*_ARGUMENTS, "torch._utils _rebuild_parameter", "torch Size", "torch device"}


class _Storage(NamedTuple):
    """What a pickle says of a storage: its type, name in the file, device and elements."""

    kind: str
    key: str
    device: str
    elements: int


@once_per_version
def check_pickles(path: str) -> None:
    """Check that a file makes ordinary tensors alone, each within a storage that the file has.

    Raises:
        CheckpointError: it does not.
    """
    try:
        if is_zip(path):
            # torch's reader, since zipfile's may find another record
            content = torch._C.PyTorchFileReader(path).get_record("data.pkl")
            _one_of_each(_storages(content))
            return
        with open(path, "rb") as file:
            for _ in range(_BEFORE_CONTENT):
                _one_of_each(_storages(file))
            used, stored = _one_of_each(_storages(file)), _Names(file).load()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError("it is not a checkpoint, or is damaged") from error
    if type(stored) is not list or sorted(used) != sorted(stored):
        raise CheckpointError("it has tensors without values, or values without tensors")


class _Names(pickle.Unpickler):
    """Reads a list of texts, and refuses whatever has code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise CheckpointError(f"it refers to {module}.{name}, which is not loaded")


def _one_of_each(storages: Iterator[_Storage]) -> dict[str, _Storage]:
    """Storages by name. torch takes the first of a name, whatever the others say."""
    found: dict[str, _Storage] = {}
    for storage in storages:
        if found.setdefault(storage.key, storage) != storage:
            raise CheckpointError(f"it describes the storage {storage.key} in two ways")
    return found


def _storages(content: bytes | IO[bytes]) -> Iterator[_Storage]:
    """The storages that a pickle refers to.

    Raises:
        CheckpointError: it would make anything of torch's but tensors within them.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for code, argument, _ in pickletools.genops(content):
        if code.name.endswith("PUT"):
            memo[argument] = stack[-1]
        elif code.name.endswith("GET"):
            stack.append(memo[argument])
        elif code.name == "MARK":
            stack.append(_MARK)
        else:
            taken = _taken(stack, code)
            made = _made(code.name, argument, taken)
            if code.name == "BINPERSID":
                yield made
            stack += [made] * len(code.stack_after)


def _taken(stack: list[Any], code: pickletools.OpcodeInfo) -> list[Any]:
    """What an instruction takes from the stack, the last one last."""
    count, taken = len(code.stack_before), []
    if pickletools.markobject in code.stack_before:
        count = code.stack_before.index(pickletools.markobject)
        while (value := stack.pop()) is not _MARK:
            taken.append(value)
    taken += [stack.pop() for _ in range(count)]
    return taken[::-1]


def _made(name: str, argument: Any, taken: list[Any]) -> Any:
    """What an instruction leaves on the stack, as far as it matters here."""
    if name == "BINPERSID":
        return _storage(taken[0])
    if name in ("REDUCE", "NEWOBJ"):
        return _called(name, *taken)
    if name == "BUILD":
        if isinstance(taken[0], _Storage) or taken[0] is _MADE:
            raise CheckpointError("it changes a tensor, which is not an ordinary tensor then")
        return taken[0]
    if name.startswith("TUPLE") or name == "EMPTY_TUPLE":
        return tuple(taken)
    if name == "NONE":
        return None
    return argument if isinstance(argument, int | str) else _OTHER


def _storage(told: Any) -> _Storage:
    word, kind, key, device, elements, *view = told
    # of other letters, torch and pickletools could read two texts from the same bytes
    are_texts = all(type(x) is str and x.isascii() for x in (word, kind, key, device))
    if word != "storage" or not are_texts or type(elements) is not int:
        raise CheckpointError("it refers to something else than storages")
    if view not in ([], [None]):  # as none is that torch writes
        raise CheckpointError(f"its storage {key:.80} is a part of another one")
    return _Storage(kind, key, device, elements)


def _called(name: str, function: Any, arguments: Any) -> object:
    """What a call leaves on the stack.

    Raises:
        CheckpointError: it is none of those that make ordinary tensors.
    """
    is_name = isinstance(function, str)
    of_torch = is_name and re.split("[ .]", function)[0] == "torch"
    is_refused = of_torch and (name != "REDUCE" or function not in _OF_TORCH)
    if not is_name or is_refused:
        shown = str(function).replace(" ", ".")
        raise CheckpointError(f"it calls {shown:.80}, which makes what is not an ordinary tensor")
    if not of_torch:
        return _OTHER
    if count := _ARGUMENTS.get(function):
        if len(arguments) > count:
            raise CheckpointError("it has a tensor with a state, which is not an ordinary tensor")
        if not _is_within(*arguments[:4]):
            raise CheckpointError("it has a tensor that reaches beyond its storage")
    return _MADE


def _is_within(storage: Any, offset: Any, sizes: Any, strides: Any) -> bool:
    """Whether all elements of a tensor are in its storage."""
    if not isinstance(storage, _Storage) or not type(sizes) is type(strides) is tuple:
        return False
    if not all(type(n) is int and n >= 0 for n in (offset, *sizes, *strides)):
        return False
    if len(sizes) != len(strides):
        return False
    if 0 in sizes:
        return True
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    return last < storage.elements
