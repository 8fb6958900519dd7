"""The compiled kernels under AddressSanitizer and UBSan: an access outside of memory that is
theirs ends the program, and so does undefined behaviour. And with compiler flags of users'.

CONVATTN_FUZZ_SECONDS=3600 python -m pytest -m slow -k random tests/ops/test_sanitized_kernels.py

tries random shapes and options for an hour; without the variable always the same ones.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

COMPARISONS = {
    "test_convolution_kernels": "native",
    "test_native_convolution": "threads or many",
    "test_attention": "every_length or dropout",
    "test_attention_bfloat16": "test",
    "test_short_convolution": "native",
}

# masked loads, which AVX-512 has, are beyond the sanitizer
CHOOSE = """
import torch
from fairseq_convattn.ops import dynamic_conv, native
assert native.use_instructions({instructions!r})
"""
TOO_SHORT = """
x, taps = torch.randn(100, 2, 64), torch.randn(100, 2, 4, 7)
taps.untyped_storage().resize_(taps.nbytes - 4)
dynamic_conv(x, taps, causal=True, softmax=True, impl="native")
"""
TEST = """
import pytest, sys
sys.exit(pytest.main({arguments!r}))
"""


def library(name: str) -> str:
    """One of the C compiler's own."""
    compiler = sysconfig.get_config_var("CC").split()[0]
    if not shutil.which(compiler):
        pytest.skip(f"needs the C compiler {compiler}")
    command = [compiler, f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"{compiler} has no {name}")
    return path


def compiled(copy: Path, flags: str) -> Callable[..., subprocess.CompletedProcess]:
    """Runs Python in a copy of the package, whose kernels are compiled with such flags."""
    kernels = shutil.ignore_patterns("__pycache__", "_kernels*")
    shutil.copytree(ROOT / "fairseq_convattn", copy / "fairseq_convattn", ignore=kernels)
    for name in ("tests", "setup.py", "pyproject.toml"):
        (copy / name).symlink_to(ROOT / name)

    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env={**outer, "PYTHONPATH": str(copy), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    built = python("setup.py", "-q", "build_ext", "--inplace", CFLAGS=flags)
    assert list((copy / "fairseq_convattn" / "ops" / "native").glob("_kernels*")), built.stderr
    return python


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Runs a script, with kernels for some instructions, on a copy that is compiled so."""
    # the sanitizer's handling of exceptions looks for libstdc++ before PyTorch has loaded it
    preloaded = " ".join(map(library, ("libasan.so", "libubsan.so", "libstdc++.so")))
    sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    flags = f"-O1 {sanitizers} -fno-omit-frame-pointer -g"
    python = compiled(tmp_path_factory.mktemp("sanitized"), flags)
    preload = {"LD_PRELOAD": preloaded, "ASAN_OPTIONS": "detect_leaks=0"}

    def run(instructions: str | None, script: str, **more: str) -> subprocess.CompletedProcess:
        chosen = CHOOSE.format(instructions=instructions)
        return python("-c", chosen + script, **preload, **more)

    return run


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    library("libgcc.a")  # of a compiler
    return compiled(tmp_path_factory.mktemp("fast"), "-O3 -ffast-math -std=c99")


def test_notices_an_access_outside(sanitized):
    run = sanitized("portable", TOO_SHORT)
    assert "AddressSanitizer: heap-buffer-overflow" in run.stderr and run.returncode


def arguments(name: str, chosen: str) -> list[str]:
    return ["-q", "-s", "-p", "no:cacheprovider", "-k", chosen, f"tests/ops/{name}.py"]


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("instructions", [None, "portable"])
def test_nothing_outside_is_read_or_written(sanitized, name, instructions):
    run = sanitized(instructions, TEST.format(arguments=arguments(name, COMPARISONS[name])))
    assert run.returncode == 0, (run.stdout + run.stderr)[-5000:]


@pytest.mark.parametrize("name", COMPARISONS)
def test_flags_for_fast_arithmetic_do_not_reach_the_kernels(fast, name):
    run = fast("-m", "pytest", *arguments(name, COMPARISONS[name]))
    assert run.returncode == 0, (run.stdout + run.stderr)[-5000:]


@pytest.mark.ci
def test_random_shapes_and_options(sanitized):
    """The property-based tests of the compiled kernels, which share the time that is given."""
    seconds = os.environ.get("CONVATTN_FUZZ_SECONDS")
    each = {"CONVATTN_FUZZ_SECONDS": str(float(seconds) / 4)} if seconds else {}
    given = arguments("test_operation_properties", "native")
    run = sanitized(None, TEST.format(arguments=given), **each)
    assert run.returncode == 0, (run.stdout + run.stderr)[-5000:]
    assert "4 passed" in run.stdout
    print(run.stdout)
