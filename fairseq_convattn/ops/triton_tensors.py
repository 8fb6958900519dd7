"""Tensor access, input checks and launches shared by all Triton kernels."""

import contextlib
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .implementation import unfit_for_operators

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LOG2_E = tl.constexpr(1.4426950408889634)


class Strided(NamedTuple):
    """A tensor ``[time, batch, heads, ...]`` as kernels take it, with its strides."""

    data: Tensor
    t: int
    b: int
    h: int
    c: int = 0


def power_of_2(n: int) -> int:
    """The next power of two, without the microseconds of Triton's function."""
    return 1 << (n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """a / b rounded up, likewise."""
    return -(-a // b)


def strided(x: Tensor | None) -> Strided | None:
    return None if x is None else Strided(x, *x.stride())


def everywhere(x: Tensor, dims: int) -> Strided:
    """``x`` of so many dimensions, or the same for all positions and sentences.

    ``expand`` would not do: it gives a dimension of size 1 a stride, and kernels compute addresses
    outside the sequence."""
    return Strided(x, *(0,) * (dims - x.dim()), *x.stride())


def of_width(x: Tensor | None, width: int) -> Strided | None:
    """``[time, batch, channels]`` as of heads of so many channels; of one head with width 0."""
    if x is None:
        return None
    of_time, of_batch, of_channel = x.stride()
    return Strided(x, of_time, of_batch, of_channel * width, of_channel)


@triton.jit
def at(x, b, t, h):
    """Addresses of heads h at positions t of sentence b."""
    return x.data + b * x.b + h.to(tl.int64) * x.h + t.to(tl.int64) * x.t


@triton.jit
def load(x, b, t, h, there, c):
    """``[rows, channels c]``, zero where nothing is ``there``."""
    return tl.load(at(x, b, t, h)[:, None] + c.to(tl.int64) * x.c, mask=there, other=0.0)


@triton.jit
def store(x, b, t, h, there, c, values):
    place = at(x, b, t, h)[:, None] + c.to(tl.int64) * x.c
    tl.store(place, values.to(x.data.dtype.element_ty), mask=there)


# multiplications and additions in one instruction, which Triton 3.10 would not do by itself
COMPILED = {"enable_fp_fusion": True}
INTERPRETED = not isinstance(at, triton.JITFunction)
ASSEMBLY = tl.constexpr(not INTERPRETED and torch.version.hip is None)  # NVIDIA's, in kernels
DEVICES = ("CUDA", "CPU") if INTERPRETED else ("CUDA",)


def unfit(*tensors: Tensor) -> str:
    """Why no kernel can take such tensors; empty when some can."""
    on_gpu, dtypes = all(x.is_cuda for x in tensors), [x.dtype for x in tensors]
    if not on_gpu and not INTERPRETED:
        return (
            "needs tensors on a GPU, or TRITON_INTERPRET=1 in the environment before Triton is "
            "imported"
        )
    if on_gpu and capability(tensors[0].device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or more"
    if not on_gpu and torch.bfloat16 in dtypes:
        return "needs a GPU for bfloat16, whose bits Triton's interpreter multiplies as integers"
    if not set(dtypes) <= set(DTYPES):
        return f"takes float32 and half precision, not {' and '.join(map(str, dtypes))}"
    return unfit_for_operators()


@torch.compiler.assume_constant_result
def capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def precision(device: torch.device) -> str:
    """Triton's name for how float32 is multiplied; tf32x3 is as precise as float32."""
    if device.type != "cuda" or torch.version.hip:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def on_device_of(x: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


_compiled: dict[tuple, Any] = {}


def launch(
    kernel, programs: int, given: dict[str, Any], varying: Collection[str], like: Tensor, **options
) -> None:
    """Run a kernel on the device of ``like``, with those of the ``given`` arguments that it has.

    Compiled kernels are found here by what they were compiled for. Triton's own search takes
    longer than many of them run.

    Args:
        given: constants have names in capitals.
        varying: names of integers that the kernel is not specialized for.
        options: Triton's, such as ``num_warps``.
    """
    arguments = [given[name] for name in kernel.arg_names]
    kinds = [
        value if name.isupper() else value >> 31 if name in varying else kind(value)
        for name, value in zip(kernel.arg_names, arguments, strict=True)
    ]
    key = (id(kernel), like.device.index, *options.values(), *kinds)
    with on_device_of(like):
        if (compiled := _compiled.get(key)) is not None:
            compiled[(programs, 1, 1)](*arguments)
            return
        compiled = kernel[(programs,)](*arguments, **options, **COMPILED)
    # Triton's interpreter compiles nothing; AMD's kernels depend on the size of memory, too
    if compiled is not None and torch.version.hip is None:
        _compiled[key] = compiled


def kind(value: Any) -> Any:
    """What a kernel compiled for ``value`` depends on: Triton specializes for alignment, for
    integers that are 1 or divisible by 16, and for those beyond 32 bits."""
    if type(value) is Strided:
        data, *strides = value
        return data.dtype, data.data_ptr() % 16 == 0, *map(_kind_of_integer, strides)
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, tuple):
        return tuple(map(kind, value))
    return type(value) if value is None or isinstance(value, float) else _kind_of_integer(value)


def _kind_of_integer(value: int) -> tuple[bool, bool, int]:
    return value == 1, value % 16 == 0, value >> 31
