"""numpy's numbers and arrays in checkpoints, read without numpy's own unpickling.

fairseq stores validation metrics as they are logged, BLEU's counts and F1 as values of numpy.
Only numbers are read, and only as many as the file has bytes for.
"""

import math
from collections.abc import Callable, Sequence
from pickle import UnpicklingError
from typing import Any

import numpy

_NUMBERS = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}


class NumberType:
    """Stands for a dtype; a real one would take fields and other surprises from the file."""

    def __init__(self, code: str, *flags: bool):
        if code not in _NUMBERS:
            raise UnpicklingError(f"numpy values of type {code!r:.80} are no numbers")
        self.dtype = numpy.dtype(code)

    def __setstate__(self, state: Sequence[Any]) -> None:
        if state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


class StoredArray(numpy.ndarray):
    """An array from a checkpoint, which is pickled as any other."""

    def __new__(cls, *kind_shape_and_code: object) -> "StoredArray":
        """As numpy's ``_reconstruct``: empty until :meth:`__setstate__`."""
        return super().__new__(cls, 0)

    def __setstate__(self, state: tuple[int, tuple[int, ...], NumberType, bool, bytes]) -> None:
        version, shape, kind, is_fortran, content = state
        if not isinstance(kind, NumberType) or not isinstance(content, bytes):
            raise UnpicklingError("a numpy array of the checkpoint has no numbers")
        possible = all(type(n) is int and 0 <= n <= len(content) for n in shape)
        if not possible or len(content) != math.prod(shape) * kind.dtype.itemsize:
            raise UnpicklingError(f"a numpy array of shape {shape} has {len(content):,} bytes")
        super().__setstate__((version, shape, kind.dtype, is_fortran, content))

    def __reduce_ex__(self, protocol: int) -> tuple:
        return self.view(numpy.ndarray).__reduce_ex__(protocol)


def _number(kind: NumberType, content: bytes) -> numpy.generic:
    """As numpy's ``scalar``."""
    return numpy.frombuffer(content, kind.dtype, count=1)[0]


def _ndarray(*arguments: object) -> None:
    """Stands for the class, which files name and do not call."""
    raise UnpicklingError("the checkpoint makes a numpy array in an unusual way")


ALLOWED: list[Callable | tuple[Callable, str]] = [
    NumberType,
    StoredArray,
    (NumberType, "numpy.dtype"),
    (_ndarray, "numpy.ndarray"),
    *(
        (function, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")  # before and since numpy 2
        for function, name in ((StoredArray, "_reconstruct"), (_number, "scalar"))
    ),
]
"""For ``torch.serialization.add_safe_globals``."""
