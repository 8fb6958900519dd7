"""That the Triton kernels compile for NVIDIA GPUs and fit them; needs none."""

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
SHARED_MEMORY = {"80": 163 * 1024, "89": 99 * 1024, "90": 227 * 1024}  # bytes a block may have
KERNELS = {
    "convolution": {
        *("forward_by_taps", "backward_by_taps", "forward_by_bands", "backward_by_bands"),
    },
    "attention": {"forward_by_queries", "backward_by_queries", "backward_by_keys"},
    "short_convolution": {"forward", "backward_x", "backward_z", "backward_up"},
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
    return found


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    "operation, shapes", [("convolution", "2"), ("attention", "1"), ("short_convolution", "1")]
)
def test_kernels_compile(operation, shapes):
    found = compiled(operation, "90", "bfloat16", shapes)
    assert all(kernel["shared_memory"] <= SHARED_MEMORY["89"] for kernel in found)
    if operation != "attention":  # those of attention with every term do spill registers
        assert all(kernel["stack"] == 0 for kernel in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation, capability, dtype",
    list(itertools.product(KERNELS, SHARED_MEMORY, ("bfloat16", "float16", "float32"))),
)
def test_kernels_fit_every_gpu(operation, capability, dtype):
    for kernel in compiled(operation, capability, dtype):
        assert kernel["shared_memory"] <= SHARED_MEMORY[capability], kernel
