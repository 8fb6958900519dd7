"""Compiles the Triton kernels for a GPU that need not be there; prints what each takes as JSON.

python tests/ops/compile_for_gpus.py convolution 90 bfloat16      # or attention
python tests/ops/compile_for_gpus.py convolution 90 bfloat16 2    # the first two shapes
"""

import json
import os
import re
import subprocess
import sys
import tempfile

os.environ.pop("TRITON_INTERPRET", None)  # which Triton reads when it is imported

import torch
from triton import knobs
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from fairseq_convattn.ops.attention import triton_kernels as attention
from fairseq_convattn.ops.attention.operators import Dropout
from fairseq_convattn.ops.attention.scores import Layout, Scores
from fairseq_convattn.ops.convolution import triton_kernels as convolution

TIME, BATCH, HEADS = 100, 2, 4
UNABLE = 3  # the exit status without what NVIDIA's GPUs need


class Absent:
    """What Triton asks of the driver of a GPU before it launches a kernel."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


def convolve(dtype: torch.dtype, kernel_size: int, width: int) -> None:
    x = torch.randn(TIME, BATCH, HEADS * width, dtype=dtype)
    logits = torch.randn(TIME, BATCH, HEADS, kernel_size, dtype=dtype)
    for taps, kept in ((logits, logits > 0), (logits[0, 0].clone(), None)):
        _, lse = convolution._forward(x, taps, kept, TIME, kernel_size - 1, True, 0.9)
        convolution._backward(x, lse, x, taps, kept, kernel_size - 1, True, 0.9, True, True)


def attend(dtype: torch.dtype, width: int) -> None:
    q, k, v = (torch.randn(BATCH, HEADS, TIME, width, dtype=dtype) for _ in range(3))
    curve, by_position = torch.randn(HEADS, 2 * TIME - 1), torch.randn(BATCH, HEADS, TIME)
    added = by_position, torch.randn(BATCH, HEADS, TIME, 17), by_position, by_position
    for more, dropout in (((None,) * 4, None), (added, Dropout(0.1, 1))):
        scores = Scores(q, k, v, curve, *more)
        kernels = attention._Kernels(scores, Layout(8, 8, None, False, 0.1), dropout)
        y, lse = kernels.forward()
        kernels.backward(y, lse, y, Scores(*(x is not None for x in scores)))


OPERATIONS = {
    "convolution": (convolve, [(31, 64), (3, 64), (7, 8), (7, 64), (64, 80), (31, 256)]),
    "attention": (attend, [(64,), (32,), (128,)]),
}


def resources(kernel) -> dict[str, int]:
    """Of a thread registers and bytes of the stack, to which registers spill; of a block bytes of
    shared memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {name: int(count) for name, count in re.findall(r"(REG|STACK):(\d+)", printed)}
    return {
        "registers": used["REG"],
        "stack": used["STACK"],
        "shared_memory": kernel.metadata.shared,
    }


def main(operation: str, capability: str, dtype: str, shapes: str = "") -> None:
    if "nvidia" not in backends:
        sys.exit(UNABLE)
    launch = jit.JITFunction.run

    def compile_only(self, *arguments, grid, warmup, **options):
        kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
        print(json.dumps({"kernel": self.fn.__name__, **resources(kernel)}), flush=True)

    jit.JITFunction.run = compile_only
    driver.set_active(Absent(int(capability)))
    for module in (convolution, attention):
        module.precision = lambda device: "tf32x3"
    compute, every = OPERATIONS[operation]
    for shape in every[: int(shapes) if shapes else None]:
        compute(getattr(torch, dtype), *shape)


if __name__ == "__main__":
    main(*sys.argv[1:])
