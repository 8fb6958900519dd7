"""That the Triton kernels compile for NVIDIA GPUs, fit them and have no atomics, so that the same
inputs give the same bits; needs no GPU."""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

SCRIPT = Path(__file__).with_name("compile_for_gpus.py")
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "benchmarks")))
UNABLE = 3  # as there
KIBIBYTES = {"80": 163, "89": 99, "90": 227, "100": 227}  # of shared memory a block may have
SHARED_MEMORY = {capability: 1024 * size for capability, size in KIBIBYTES.items()}
KERNELS = {
    "convolution": {
        *("forward_by_taps", "backward_by_taps", "forward_by_bands", "backward_by_bands"),
    },
    "attention": {"forward_by_queries", "backward_by_queries", "backward_by_keys"},
    "short_convolution": {"forward", "backward", "backward_x", "backward_up", "backward_z"},
    "static_convolution": {"forward", "backward"},
}
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="needs Triton: pip install triton"
)


def compiled(operation, capability, dtype, *shapes):
    run = subprocess.run(
        [sys.executable, str(SCRIPT), operation, capability, dtype, *shapes],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    if run.returncode == UNABLE:
        pytest.skip("this build of Triton compiles for no NVIDIA GPU")
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in found} == KERNELS[operation]
    for kernel in found:
        assert not kernel["atomics"], kernel
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation, shapes, capability",
    [
        pytest.param("convolution", "2", "90", marks=pytest.mark.ci),
        *(("convolution", "2", "100"), ("attention", "1", "90"), ("attention", "1", "100")),
    ],
)
def test_kernels_compile(operation, shapes, capability):
    found = compiled(operation, capability, "bfloat16", shapes)
    assert all(kernel["shared_memory"] <= SHARED_MEMORY["89"] for kernel in found)
    spilled = 0
    if operation == "convolution":
        spilled = 16  # where the assembler prefers more warps to more registers
        assert all(rows == 4 for kernel in found for rows in kernel["rows_of_taps"])
        assert sum(bool(kernel["rows_of_taps"]) for kernel in found) > 2
    if operation == "attention":  # those that follow have every term at once, and spill more
        found, spilled = found[: len(KERNELS[operation])], 256
    assert all(kernel["stack"] <= spilled for kernel in found)


@pytest.mark.slow
def test_short_convolutions_fit_the_smallest_gpu():
    """In float32, which takes the most; the third shape has more z than stays in a block."""
    found = compiled("short_convolution", "89", "float32", "3")
    assert all(kernel["shared_memory"] <= SHARED_MEMORY["89"] for kernel in found)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["80", "90", "100"])
def test_short_convolutions_move_128_bits(capability):
    found = compiled("short_convolution", capability, "bfloat16", "2")
    for kernel in found:
        assert max(kernel["loads"]) == 128, kernel
        if kernel["kernel"] != "backward_z":  # its result has no channels
            assert max(kernel["stores"]) == 128, kernel
        assert kernel["stack"] == 0, kernel
        assert kernel["shared_memory"] <= SHARED_MEMORY["89"], kernel
    of_channels = ("forward", "backward_x", "backward_up")
    assert all(kernel["stores"] == [128] for kernel in found if kernel["kernel"] in of_channels)
    of_low_rank = found[len(found) // 2 :][:4]  # 16 factors are loaded in pairs at least
    assert all(min(kernel["loads"] + kernel["stores"]) >= 32 for kernel in of_low_rank)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_static_kernels_of_17_taps_spill_no_registers(dtype):
    for kernel in compiled("static_convolution", "90", dtype, "1"):
        assert kernel["stack"] == 0, kernel
        assert max(kernel["stores"]) == (32 if dtype == "bfloat16" else 64), kernel


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation, capability, dtype",
    list(itertools.product(KERNELS, SHARED_MEMORY, ("bfloat16", "float16", "float32"))),
)
def test_kernels_fit_every_gpu(operation, capability, dtype):
    for kernel in compiled(operation, capability, dtype):
        assert kernel["shared_memory"] <= SHARED_MEMORY[capability], kernel
