"""Which compiled kernel a launch takes."""

import importlib
import inspect
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from triton_cases import triton_tensors

from fairseq_convattn.ops.triton_tensors import launch, strided


class Kernel:
    """Stands for a kernel of Triton: counts compilations, and keeps what was launched."""

    arg_names = ("x", "y", "pair", "time", "scale", "TAPS")

    def __init__(self):
        self.compiled, self.launched = [], []

    def __getitem__(self, grid):
        return lambda *arguments, **options: self._compile(grid, arguments, options)

    def _compile(self, grid, arguments, options):
        number = len(self.compiled)
        self.compiled.append(options["num_warps"])
        self.launched.append((number, grid[0], arguments))
        return Compiled(self, number)


class Compiled:
    def __init__(self, kernel, number):
        self.kernel, self.number = kernel, number

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.launched.append((self.number, grid[0], arguments))


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(triton_tensors, "_compiled", {})
    return Kernel()


def run(kernel, programs=3, warps=4, **changed):
    given = {"x": strided(torch.zeros(4, 2, 8)), "y": torch.zeros(64), "time": 4, "scale": 0.5}
    given |= {"pair": (None, torch.zeros(8)), "TAPS": 3, "unused": 1, **changed}
    launch(kernel, programs, given, ["time"], torch.zeros(1), num_warps=warps)
    number, grid, arguments = kernel.launched[-1]
    assert grid == programs
    for name, value in zip(kernel.arg_names, arguments, strict=True):
        assert value is given[name], "every launch has its own arguments"
    return number


def test_a_kernel_is_compiled_once_for_all_that_it_does_not_depend_on(kernel):
    first = run(kernel)
    assert run(kernel, programs=5) == first
    assert run(kernel, time=99) == first
    assert run(kernel, scale=0.25) == first
    assert run(kernel, x=strided(torch.ones(9, 4, 8))) == first, "its strides are of one kind"
    assert len(kernel.compiled) == 1
    assert not run(Kernel()), "another kernel is compiled, too"


@pytest.mark.parametrize(
    "changed",
    [
        {"x": strided(torch.zeros(4, 2, 8, dtype=torch.float64))},
        {"x": strided(torch.zeros(4, 3, 8))},
        {"x": strided(torch.zeros(65)[1:].view(4, 2, 8))},
        {"x": None},
        {"pair": (torch.zeros(8), None)},
        {"pair": (None, torch.zeros(8, dtype=torch.int32))},
        {"y": torch.zeros(65)[1:]},
        {"y": torch.zeros(64, dtype=torch.int32)},
        {"TAPS": 4},
        {"time": 2**31},
        {"warps": 8},
    ],
    ids=str,
)
def test_it_is_compiled_anew_for_what_it_depends_on(kernel, changed):
    first = run(kernel)
    assert run(kernel, **changed) != first
    assert run(kernel) == first
    assert len(kernel.compiled) == 2


def test_what_no_kernel_can_be_kept_of_is_not_kept(kernel):
    kernel._compile = lambda grid, arguments, options: kernel.launched.append((0, 3, arguments))
    run(kernel)
    run(kernel)
    assert not triton_tensors._compiled


def test_arguments_of_one_kind_are_alike_to_triton():
    jit = pytest.importorskip("triton.runtime.jit")
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    memory = torch.zeros(64)
    values = [
        *(0, 1, 2, 15, 16, 17, 32, 2**31 - 1, 2**31, 2**31 + 16, 2**32, -1, -16, -(2**31) - 1),
        *(0.5, 1.0, None, memory, memory[1:], memory[4:], memory.int(), memory.half()),
        *(strided(memory.as_strided((2, 2, 2), stride)) for stride in ((4, 2, 1), (16, 8, 1))),
        *(strided(memory.as_strided((2, 2, 2), stride)) for stride in ((16, 16, 1), (32, 16, 1))),
        *((memory, None), (None, memory), (memory[1:], None)),
    ]
    seen = {}
    for value in values:
        special = jit.native_specialize_impl(compiler.CUDABackend, value, False, True, True)
        seen.setdefault(triton_tensors.kind(value), set()).add(str(special))
    assert all(len(specials) == 1 for specials in seen.values()), seen
    assert len(seen) < len(values)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="is for machines without a GPU")
@pytest.mark.parametrize(
    "operation, shapes, launches",
    [
        ("convolution", "1", 10),
        ("attention", "1", 12),
        ("short_convolution", "1", 20),
        ("static_convolution", "1", 4),
        ("static_convolution", "3", 12),
    ],
)
def test_tritons_launcher_gives_the_driver_what_a_kernel_was_given(
    operation, shapes, launches, tmp_path
):
    """The first time, when it is compiled, and later, when it is found here."""
    pytest.importorskip("triton.backends.nvidia.driver", exc_type=ImportError)
    compiler = shlex.split(sysconfig.get_config_var("CC"))
    if not shutil.which(compiler[0]):
        pytest.skip("needs a C compiler")
    library, folder = tmp_path / "libcuda.so.1", Path(__file__).parent
    source = folder / "libcuda.c"
    command = [*compiler, "-shared", "-fPIC", f"-Wl,-soname,{library.name}", source, "-o", library]
    subprocess.run(command, check=True)
    places = os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))
    own = {"PYTHONPATH": places, "TRITON_LIBCUDA_PATH": tmp_path, "TRITON_CACHE_DIR": tmp_path}
    script = [sys.executable, folder / "launch_without_gpu.py", library, operation]
    run = subprocess.run(
        [*map(str, script), "bfloat16", shapes],
        capture_output=True, text=True, env={**os.environ, **{k: str(v) for k, v in own.items()}},
    )  # fmt: skip
    assert run.stdout == f"{launches}\n", run.stderr[-2000:]


@pytest.mark.parametrize(
    "module",
    [
        "attention.triton_tiles",
        *("convolution.triton_runs", "convolution.triton_tiles"),
        *("short_convolution.triton_runs", "short_convolution.triton_tiles"),
    ],
)
def test_constants_of_kernels_alone_have_names_in_capitals(module):
    """Which is how a launch tells them from other arguments."""
    name = f"fairseq_convattn.ops.{module}"
    launched = [
        kernel
        for called, kernel in vars(importlib.import_module(name)).items()
        if called.startswith(("forward", "backward"))
    ]
    assert launched
    for kernel in launched:
        for parameter in inspect.signature(kernel.fn).parameters.values():
            constant = "constexpr" in str(parameter.annotation)
            assert parameter.name.isupper() == constant, parameter
