"""The compiled kernels: loading them, their instruction set, and their threads.

They run on the OpenMP that PyTorch has loaded, so both share one pool of threads.
"""

import contextlib
import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from .sources import checksum

BUILD = "pip install --no-build-isolation --no-deps --editable . in the clone, with a C compiler"
NOT_BUILT = f"was not compiled for this version; to compile it: {BUILD}"


def _load() -> ctypes.CDLL | None:
    """The compiled kernels; None if absent or compiled from other sources."""
    for suffix in EXTENSION_SUFFIXES:
        file = Path(__file__).with_name(f"_kernels{suffix}")
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(file))
            library.convattn_instructions.restype = ctypes.c_char_p
            library.convattn_sources.restype = ctypes.c_uint32
            if checksum(file.parent) in (0, library.convattn_sources()):
                return library
    return None


def is_built() -> bool:
    """Whether the compiled kernels could be loaded."""
    return library is not None


def use_instructions(name: str | None) -> bool:
    """Use the kernels for ``amx`` (AVX-512, and AMX where it serves), ``avx512``, ``avx2`` or
    ``portable``; the best ones for None.

    Returns:
        Whether the machine supports them; if not, nothing changes.
    """
    return bool(library.convattn_choose(name.encode() if name else None))


def instructions() -> str:
    """Name of the instruction set in use."""
    return library.convattn_instructions().decode()


def has_amx() -> bool:
    """Whether products in bfloat16 use AMX."""
    return is_built() and instructions() == "amx"


has_amx._dynamo_marked_constant = True  # what torch.compiler.assume_constant_result does


def _entry_of_openmp() -> ctypes.c_void_p:
    """GOMP_parallel in PyTorch's library; NULL where it has none."""
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(torch_cpu)).GOMP_parallel, ctypes.c_void_p)
    except (OSError, AttributeError):
        return ctypes.c_void_p()


library = _load()
run_in_parallel = _entry_of_openmp()
