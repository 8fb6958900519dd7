"""The compiled convolutions: against the reference in float64, and as PyTorch's operators."""

import contextlib
import itertools
import os
import subprocess
import sys

import pytest
import torch
from conftest import PLUGIN
from convolution_cases import KINDS, compare, dropconnect, inputs
from kernel_cases import assert_equal, kernels_for, needs_kernels, with_gradients, with_threads
from torch.utils.checkpoint import checkpoint

from fairseq_convattn.ops import (
    dynamic_conv,
    implementation,
    lightweight_conv,
    use_implementation,
)
from fairseq_convattn.ops import native as library
from fairseq_convattn.ops.convolution import native

pytestmark = needs_kernels
CONVOLUTIONS = {"lightweight": lightweight_conv, "dynamic": dynamic_conv}


def test_softmax_of_what_is_not_finite_is_pytorchs():
    x, logits = inputs("dynamic", 20, 5, 16, batch=2)
    for i, value in enumerate((float("-inf"), float("inf"), float("nan"))):
        logits[3 * i, 0, 1, 2] = value
    logits[12, 1] = float("-inf")
    actual, expected = (
        dynamic_conv(x, logits, causal=True, softmax=True, impl=impl)
        for impl in ("native", "reference")
    )
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert expected.isnan().any() and not expected[0].isnan().any()


@pytest.mark.parametrize("name", KINDS)
def test_long_wide_and_many(name):
    for kernel_size, head_dim, heads in ((7, 200, 2), (63, 80, 16), (63, 96, 8), (7, 8, 150)):
        x, taps = inputs(name, 70, kernel_size, head_dim, batch=2, heads=heads)
        compare(native, x, taps, 70, kernel_size // 2)


@pytest.fixture(params=["portable", "avx2", "avx512"])
def instructions(request):
    with kernels_for(request.param):
        yield request.param


@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_every_instruction_set(name, dtype, instructions):
    for kernel_size, head_dim in itertools.product((1, 3, 31, 70), (3, 16, 80)):
        x, taps = inputs(name, 130, kernel_size, head_dim, dtype, batch=2)
        compare(native, x, taps, 130, kernel_size - 1, softmax=True, **dropconnect(taps))


def test_rounds_to_bfloat16_as_pytorch_does(instructions):
    x = torch.ones(100, 1, 19, dtype=torch.bfloat16)
    taps = 1 + torch.arange(100.0).view(100, 1, 1, 1) / 256  # every other one is a tie
    taps[0] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # NaN
    y = dynamic_conv(x, taps, causal=True, impl="native")
    expected = taps[..., 0].bfloat16().expand(y.shape)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "kernel_size, dtype, softmax",
    [
        (7, torch.float32, True),
        (31, torch.float32, False),
        (7, torch.bfloat16, False),
        (31, torch.bfloat16, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", KINDS)
def test_threads_do_not_change_a_bit(name, kernel_size, dtype, softmax):
    x, taps = inputs(name, 700, kernel_size, 80, dtype, batch=8)
    options = {"softmax": softmax, **(dropconnect(taps) if softmax else {})}
    given = (x, taps), torch.randn_like(x), 700, kernel_size - 1
    first, *others = with_threads(
        (1, 2, 2, 3), lambda: with_gradients(native.convolve, *given, **options)
    )
    for other in others:
        assert_equal(first, other)


@pytest.mark.parametrize("name", KINDS)
def test_compiles_to_one_graph(name):
    x, taps = inputs(name, 40, 7, 8)
    bias = torch.randn(x.size(2))

    def function(x, taps, bias):
        return CONVOLUTIONS[name](x, taps, bias, causal=True).sin()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    results = []
    for f in (function, compiled):
        tensors = [t.clone().requires_grad_() for t in (x, taps, bias)]
        results.append(torch.autograd.grad(f(*tensors).sum(), tensors))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_autocast_and_activation_checkpointing():
    x, taps = inputs("dynamic", 40, 7, 8)
    x.requires_grad_(), taps.requires_grad_()
    linear = torch.nn.Linear(16, 16)

    def function(x):
        return dynamic_conv(linear(x), taps, causal=True, impl="native")

    with torch.autocast("cpu", torch.bfloat16):
        assert function(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.float16):
        with pytest.raises(ValueError, match="takes float32 and bfloat16"):
            function(x)
        assert dynamic_conv(linear(x), taps, causal=True).dtype == torch.float16
    expected = torch.autograd.grad(function(x).sum(), [x, taps])
    again = checkpoint(function, x, use_reentrant=False)
    for e, a in zip(expected, torch.autograd.grad(again.sum(), [x, taps]), strict=True):
        torch.testing.assert_close(a, e)


def test_choice_of_implementation():
    x, taps = inputs("dynamic", 5, 3, 4)

    def operator(**options):
        y = dynamic_conv(x.requires_grad_(), taps, causal=True, **options)
        return "convattn" in y.grad_fn.name().lower()

    assert operator()
    assert not operator(impl="reference")
    with use_implementation("reference"):
        assert not operator()
        assert operator(impl="native")
    assert operator()
    with use_implementation("native"), pytest.raises(ValueError, match="takes float32"):
        dynamic_conv(x.double(), taps.double(), causal=True)
    with pytest.raises(ValueError, match="choose from"), use_implementation("none such"):
        pytest.fail("there is none such")
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(use_implementation("reference"))
        second.enter_context(use_implementation("native"))
        first.close()  # before the block that it was opened in, as another thread might
        assert operator()
    assert implementation.requested(None) is None


def run(script, **environment):
    """A process that imports the operations without fairseq."""
    result = subprocess.run(
        [sys.executable, "-W", "always", "-c", script],
        env={**os.environ, "PYTHONPATH": str(PLUGIN), **environment},
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stdout, result.stderr


AT_THE_END_OF_MEMORY = """
import ctypes, itertools, math, mmap, torch
from ops import dynamic_conv
from ops.native import use_instructions

def last(*shape, dtype):
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    after = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(after), mmap.PAGESIZE, 0) == 0
    count = math.prod(shape)
    offset = mmap.PAGESIZE - dtype.itemsize * count
    tensor = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
    return tensor.view(shape).requires_grad_()

sets, dtypes = ("portable", "avx2", "avx512"), (torch.float32, torch.bfloat16)
for name, dtype, kernel_size, head_dim in itertools.product(sets, dtypes, (3, 7, 31), (3, 16)):
    if use_instructions(name):
        x = last(5, 1, 2 * head_dim, dtype=dtype)
        taps = last(5, 1, 2, kernel_size, dtype=dtype)
        grad = last(5, 1, 2 * head_dim, dtype=dtype).detach()
        dynamic_conv(x, taps, causal=True, softmax=True, impl="native").backward(grad)
print("done")
"""


def test_reads_nothing_beyond_the_last_row():
    code, out, err = run(AT_THE_END_OF_MEMORY)
    assert (code, out) == (0, "done\n"), err


def test_the_environment_names_the_implementation():
    convolve = "ops.lightweight_conv(torch.ones(3, 1, 2), torch.ones(1, 2), causal=True)"
    code, _, err = run(f"import torch, ops; {convolve}", CONVATTN_IMPL="fast")
    assert code != 0 and "unknown impl 'fast'" in err


WITHOUT_THE_LIBRARY = """
import importlib.machinery, numpy, torch, torch._dynamo
importlib.machinery.EXTENSION_SUFFIXES[:] = [".none"]  # what is compiled is imported by now
from ops import lightweight_conv
if {compiled}:
    options = {{"fullgraph": True, "backend": "eager", "dynamic": False}}
    lightweight_conv = torch.compile(lightweight_conv, **options)
for length in (3, 5):
    y = lightweight_conv(torch.ones(length, 2, 8), torch.ones(2, 3), causal=True)
    print(y.sum().item())
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_without_the_library_it_works_and_says_so_once(compiled):
    code, out, err = run(WITHOUT_THE_LIBRARY.format(compiled=compiled))
    assert (code, out) == (0, "96.0\n192.0\n"), err
    assert err.count("was not compiled") == 1


def test_a_library_of_other_sources_is_not_used(monkeypatch):
    assert library._load() is not None
    monkeypatch.setattr(library, "checksum", lambda folder: 1)
    assert library._load() is None
    monkeypatch.setattr(library, "checksum", lambda folder: 0)  # installed without sources
    assert library._load() is not None


def test_what_it_cannot_differentiate_goes_through_pytorch():
    x, taps = inputs("dynamic", 40, 7, 8)

    def function(x):
        return dynamic_conv(x, taps, causal=True)

    _, tangent = torch.func.jvp(function, (x,), (x,))
    torch.testing.assert_close(tangent, function(x))
    grad = torch.func.grad(lambda x: function(x).square().sum())(x)
    torch.testing.assert_close(
        grad, torch.autograd.grad(function(x.requires_grad_()).square().sum(), x)[0]
    )


def test_a_trace_serves_other_lengths():
    x, taps = inputs("dynamic", 40, 7, 8)
    traced = torch.jit.trace(lambda x, w: dynamic_conv(x, w, causal=True), (x, taps))
    shorter = traced(x[:20], taps[:20])
    torch.testing.assert_close(shorter, dynamic_conv(x[:20], taps[:20], causal=True))


def test_the_backward_operator_takes_kernels_that_meet_no_input():
    x, taps = inputs("dynamic", 9, 3, 4, batch=2)
    torch.ops.convattn.convolve_backward(x, x, x, taps[0, 0], None, 9, 30, False, 1.0, [True] * 2)
