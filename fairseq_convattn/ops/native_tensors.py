"""Tensor access, input checks and calls shared by the C kernels of convolutions."""

import ctypes
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from . import native
from .implementation import unfit_for_operators

DTYPES = (torch.float32, torch.bfloat16)


class Sequence(ctypes.Structure):
    """``[time, batch, channels]`` as kernels take it, with neighbouring channels."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("time_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
    ]

    @classmethod
    def of(cls, x: Tensor) -> Self:
        return cls(x.data_ptr(), x.stride(0), x.stride(1))


def dense(x: Tensor | None) -> Tensor | None:
    """``x`` with neighbouring channels."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def unfit(*tensors: Tensor) -> str:
    """Why the kernels cannot take such inputs; empty when they can."""
    if any(x.device.type != "cpu" for x in tensors):
        return "is for tensors on the CPU"
    if any(x.dtype not in DTYPES for x in tensors):
        return f"takes float32 and bfloat16, not {' and '.join(str(x.dtype) for x in tensors)}"
    return unfit_for_operators() if native.is_built() else native.NOT_BUILT


def run(kernel: Callable, problem: ctypes.Structure, *, backward: bool) -> None:
    """Compute the outputs or the gradients that a problem asks for.

    Raises:
        MemoryError: there is none for the kernel's scratch.
    """
    threads = torch.get_num_threads()
    if kernel(ctypes.byref(problem), backward, threads, native.run_in_parallel):
        raise MemoryError("no memory for the convolution's scratch")
