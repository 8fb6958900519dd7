"""What checkpoints hold beside tensors and configuration, read without the code of its types.

fairseq stores validation metrics as they are logged, BLEU's counts and F1 as values of numpy. Of
these only numbers are read; empty arrays and large ones are refused. In 2019 it pickled the
meters of a training. They are read as dictionaries, and nothing uses them.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

import numpy
import torch

_NUMBERS = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}
_MOST_DIMENSIONS = 32  # beyond them numpy 1 reads memory that is not the array's
_MOST_BYTES = 2**20  # of an array; numpy copies those of another byte order
_LOCK = threading.RLock()


class NumberType:
    """Stands for a dtype; a real one would take fields and other surprises from the file."""

    def __init__(self, code: str, *flags: bool):
        if not isinstance(code, str) or code not in _NUMBERS:
            raise UnpicklingError(f"numpy values of type {code!r:.80}, which are not numbers")
        self.dtype = numpy.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


class StoredArray(numpy.ndarray):
    """An array from a checkpoint. It is pickled, and gives results, as any other."""

    def __new__(cls, *kind_shape_and_code: object) -> "StoredArray":
        """As numpy's ``_reconstruct``: empty until :meth:`__setstate__`."""
        return super().__new__(cls, 0)

    def __setstate__(self, state: tuple[int, tuple[int, ...], NumberType, bool, bytes]) -> None:
        version, shape, kind, is_fortran, content = state
        if self.size:  # a tensor may share its memory
            raise UnpicklingError("numpy values that are filled twice")
        if type(kind) is not NumberType or type(content) is not bytes:
            raise UnpicklingError("numpy values that are not numbers")
        if not 0 < len(content) <= _MOST_BYTES:
            raise UnpicklingError(f"numpy values of {len(content):,} bytes")
        possible = len(shape) <= _MOST_DIMENSIONS and all(
            type(n) is int and 0 <= n <= len(content) for n in shape
        )
        if not possible or len(content) != math.prod(shape) * kind.dtype.itemsize:
            raise UnpicklingError(f"numpy values of shape {shape!r:.80} in {len(content):,} bytes")
        super().__setstate__((version, shape, kind.dtype, is_fortran, content))

    def __reduce_ex__(self, protocol: int) -> tuple:
        return self.view(numpy.ndarray).__reduce_ex__(protocol)

    def __array_wrap__(
        self, array: numpy.ndarray, context: Any = None, return_scalar: bool = False
    ) -> Any:
        plain = array.view(numpy.ndarray)
        return plain if plain.ndim else plain[()]


def _number(kind: NumberType, content: bytes) -> numpy.generic:
    """As numpy's ``scalar``."""
    if type(kind) is not NumberType or type(content) is not bytes:
        raise UnpicklingError("numpy values that are not numbers")
    if len(content) != kind.dtype.itemsize:
        raise UnpicklingError(f"numpy values of one number in {len(content):,} bytes")
    return numpy.frombuffer(content, kind.dtype)[0]


def _ndarray(*arguments: object) -> None:
    """Stands for the class, which files name and do not call."""
    raise UnpicklingError("numpy values that are made in an unusual way")


_BY_NAME = {
    "numpy.dtype": NumberType,
    "numpy.ndarray": _ndarray,
    **{
        f"numpy.{core}.multiarray.{name}": function
        for core in ("core", "_core")  # before and since numpy 2
        for name, function in (("_reconstruct", StoredArray), ("scalar", _number))
    },
    **{
        f"{module}.{name}": OrderedDict  # which takes attributes, as the meters have them
        for module in ("fairseq.meters", "fairseq.logging.meters")
        for name in ("AverageMeter", "MetersDict", "StopwatchMeter", "TimeMeter")
    },
}
_OURS = [(function, name) for name, function in _BY_NAME.items()]


@contextmanager
def allowed() -> Iterator[None]:
    """Have torch.load read these types by this module, whatever else is allowed. What is allowed is
    the whole process's, so one thread at a time is in here."""
    with _LOCK:
        before = torch.serialization.get_safe_globals()
        _allow([entry for entry in before if _name(entry) not in _BY_NAME] + _OURS)
        try:
            yield
        finally:
            now = torch.serialization.get_safe_globals()
            _allow(before + [entry for entry in now if entry not in _OURS])


def _allow(entries: list[Callable | tuple[Callable, str]]) -> None:
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(entries)


def _name(entry: Callable | tuple[Callable, str]) -> str:
    """The name under which torch finds an entry."""
    if isinstance(entry, tuple):
        return entry[-1]
    return f"{getattr(entry, '__module__', '')}.{getattr(entry, '__qualname__', '')}"
