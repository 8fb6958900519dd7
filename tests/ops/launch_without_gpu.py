"""Launches the compiled kernels twice through Triton's own launcher, to a driver that runs nothing.

python tests/ops/launch_without_gpu.py LIBCUDA convolution bfloat16 2    # its first two shapes

Compares what the driver gets with what the kernels were given; prints how many launches there were.
LIBCUDA is compiled from libcuda.c, and ``TRITON_LIBCUDA_PATH`` names its folder.
"""

import ctypes
import struct
import sys
from collections.abc import Iterator

import torch
from compile_for_gpus import OPERATIONS, attention, convolution, short_convolution
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

from fairseq_convattn.ops import triton_tensors

BYTES = {"i32": 4, "i64": 8, "fp32": 4}  # of an argument; others are addresses
SCRATCH = [(8, 0), (8, 0)]  # which Triton adds

library = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
count = ctypes.c_int.in_dll(library, "argument_count")
sizes = (ctypes.c_int * 256).in_dll(library, "argument_bytes")
last_arguments = (ctypes.c_uint64 * 256).in_dll(library, "last_arguments")
last_grid = (ctypes.c_uint * 3).in_dll(library, "last_grid")


def passed(signature: tuple, arguments: tuple) -> Iterator[tuple[int, int]]:
    """Size and bits of all arguments but constants."""
    for kind, value in zip(signature, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from passed(kind, value)
        elif kind.startswith("*"):
            yield 8, value.data_ptr()
        elif kind == "fp32":
            yield 4, struct.unpack("I", struct.pack("f", value))[0]
        elif kind != "constexpr":
            yield BYTES[kind], value % 2 ** (8 * BYTES[kind])


def at(arguments: tuple, path: tuple[int, ...]) -> object:
    for number in path:
        arguments = arguments[number]
    return arguments


class Launcher(nvidia.CudaLauncher):
    launches = 0

    def __init__(self, source, metadata):
        super().__init__(source, metadata)
        self.source = source

    def __call__(self, x, y, z, stream, function, packed, metadata, enter, leave, *arguments):
        for path, constant in self.source.constants.items():
            assert at(arguments, path) == constant, (path, constant)
        for path, hints in self.source.attrs.items():
            for name, divisor in hints:
                value = at(arguments, path)
                value = value.data_ptr() if isinstance(value, torch.Tensor) else value
                assert name == "tt.divisibility" and value % divisor == 0, (path, value)
        expected = [*passed(tuple(self.source.signature.values()), arguments), *SCRATCH]
        count.value = len(expected)
        sizes[: len(expected)] = [size for size, _ in expected]
        super().__call__(x, y, z, stream, function, packed, metadata, enter, leave, *arguments)
        assert last_arguments[: len(expected)] == [value for _, value in expected]
        assert [*last_grid] == [x, y, z]
        Launcher.launches += 1


class Driver(nvidia.CudaDriver):
    def __init__(self):
        self.utils, self.launcher_cls = nvidia.CudaUtils(), Launcher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def main(operation: str, dtype: str, shapes: str) -> None:
    driver.set_active(Driver())
    for module in (attention, convolution, short_convolution):
        module.precision = lambda device: "tf32x3"
    compute, every = OPERATIONS[operation]
    kept = []
    for _ in range(2):
        for shape in every[: int(shapes)]:
            compute(getattr(torch, dtype), *shape)
        kept.append(len(triton_tensors._compiled))
    assert kept[0] == kept[1] > 0, "a second launch compiles nothing"
    print(Launcher.launches)


if __name__ == "__main__":
    main(*sys.argv[2:])
