"""What the tests of Triton's kernels share. They run on a GPU, else in Triton's interpreter."""

import importlib
import os
import sys
from types import ModuleType

import pytest
import torch

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU and "triton" not in sys.modules:  # Triton looks at it once
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="needs Triton: pip install triton")

from fairseq_convattn.ops import triton_tensors  # noqa: E402, after the environment is set

if triton_tensors.unfit(torch.zeros(1, device=DEVICE)):
    pytest.skip("Triton was imported without TRITON_INTERPRET=1", allow_module_level=True)


def _call(function, *args, **options):
    """Call a function from a kernel. The interpreter itself would prepare Triton's language anew
    for each call, which took a third of these tests' time. A launch prepares what kernels see of
    it; ``core``, which Triton's own functions see, is prepared here, and stays so."""
    if core.is_builtin(core.full):  # it is none any more once it is prepared
        interpreter._patch_lang(function.fn)
    return function.rewrite()(*args, **options)


if not GPU:
    core, interpreter = map(
        importlib.import_module, ("triton.language.core", "triton.runtime.interpreter")
    )
    interpreter.InterpretedFunction.__call__ = _call

needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
FAR = 2**29 + 8  # elements; four times as many are beyond 32 bits


def far_apart(x, dim):
    """The same, with ``FAR`` elements between neighbours along ``dim`` and all else side by side.

    The memory between them is never touched, so the system only promises it.
    """
    inner = x.detach().movedim(dim, 0).contiguous()
    memory = torch.empty(FAR * x.size(dim), dtype=x.dtype, device=x.device)
    far = memory.as_strided(inner.shape, (FAR, *inner.stride()[1:])).copy_(inner)
    return far.movedim(0, dim)


def record_grids(monkeypatch, module, *kernels):
    """Have kernels launched nowhere; a list of the grids that they would have had."""
    grids = []

    class Recorder:
        arg_names = ()

        def __getitem__(self, grid):
            grids.append(grid)
            return lambda **_: None

    for kernel in kernels:
        monkeypatch.setattr(module, kernel, Recorder())
    return grids


def convolution_kernels() -> ModuleType:
    return importlib.import_module("fairseq_convattn.ops.convolution.triton_launch")


def set_convolution_blocks(monkeypatch, rows, channels, heads, run=4):
    """The interpreter takes its time for a program: sentences that are long have longer blocks."""
    kernels = convolution_kernels()

    def blocks(time, head_dim, kernel_size, banded):
        size = rows if time <= 50 else 4 * rows
        return kernels.Blocks(size, 1 if banded else heads, channels, 4, run)

    def backward(time, head_dim, kernel_size, banded, dtype):
        found = blocks(time, head_dim, kernel_size, banded)
        return found._replace(rows=kernels._padded(kernel_size)) if banded else found

    monkeypatch.setattr(kernels, "_forward_blocks", blocks)
    monkeypatch.setattr(kernels, "_backward_blocks", backward)
