"""The convolutions' Triton kernels against the reference: on a GPU, else interpreted."""

import functools
import itertools

import convolution_cases
import pytest
import torch
from convolution_cases import BATCH, HEADS, KINDS, TOLERANCES, dropconnect
from kernel_cases import assert_equal, with_gradients
from triton_cases import (
    DEVICE,
    FAR,
    GPU,
    convolution_kernels,
    far_apart,
    needs_gpu,
    record_grids,
    set_convolution_blocks,
    triton_tensors,
)

from fairseq_convattn.ops import Past, dynamic_conv, lightweight_conv
from fairseq_convattn.ops.convolution import reference, triton_tiles

kernels = convolution_kernels()

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # of rows left out
DTYPES = [
    torch.float32,
    torch.float16,
    pytest.param(torch.bfloat16, marks=needs_gpu),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, request):
    """So that short inputs have several."""
    if "own_blocks" not in request.fixturenames:
        set_convolution_blocks(monkeypatch, 16, 16, 2)


@pytest.fixture
def own_blocks():
    """Those for GPUs."""


def inputs(*shape, **options):
    return [t.to(DEVICE) for t in convolution_cases.inputs(*shape, **options)]


compare = functools.partial(convolution_cases.compare, kernels)


def set_way(monkeypatch, banded):
    monkeypatch.setattr(kernels, "_multiplies_bands", lambda *shape: banded)


def compare_some(kind, time, kernel_size, head_dim, dtype=torch.float32, heads=HEADS):
    """Causal and centred, normalised or not, with and without DropConnect, in turn."""
    x, taps = inputs(kind, time, kernel_size, head_dim, dtype, heads=heads)
    turn = time + kernel_size + head_dim + len(kind)
    for softmax in (False, True):
        left = (kernel_size - 1, kernel_size // 2)[(turn + softmax) % 2]
        dropped = dropconnect(taps) if (turn // 2 + softmax) % 2 else {}
        compare(x, taps, time, left, softmax=softmax, **dropped)


SHAPES = [  # by taps, then by bands
    *((1, 1, 1), (1, 7, 3), (5, 3, 64), (5, 7, 80), (65, 3, 16), (64, 7, 3), (257, 1, 3)),
    *((1, 31, 16), (2, 33, 3), (5, 64, 1), (17, 15, 3), (33, 31, 16), (65, 31, 3)),
    *((1000, 3, 16), (1000, 31, 3)),
]
QUICK = list(zip(itertools.cycle(KINDS), SHAPES[:-2], strict=False))


@pytest.mark.parametrize(
    "kind, shape",
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
     for case in itertools.product(KINDS, SHAPES)],
    ids=str,
)  # fmt: skip
def test_is_the_reference(kind, shape):
    time, kernel_size, head_dim = shape
    compare_some(kind, time, kernel_size, head_dim)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time, kernel_size, head_dim", [(5, 3, 64), (17, 31, 16)])
def test_half_precision(time, kernel_size, head_dim, kind, dtype):
    compare_some(kind, time, kernel_size, head_dim, dtype)


@needs_gpu
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel_size", [1, 3, 4, 7, 31, 33, 64])
def test_every_combination(own_blocks, kernel_size, kind, dtype):
    for time, head_dim in itertools.product((1, 2, 5, 63, 64, 65, 257), (1, 3, 16, 64, 80)):
        x, taps = inputs(kind, time, kernel_size, head_dim, dtype)
        for left, softmax in itertools.product((kernel_size - 1, kernel_size // 2), (False, True)):
            compare(x, taps, time, left, softmax=softmax)
            compare(x, taps, time, left, softmax=softmax, **dropconnect(taps))


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("banded", [False, True])
@pytest.mark.parametrize("kernel_size", [3, 7])
def test_a_single_position_reads_no_other(kernel_size, banded, softmax, monkeypatch):
    """Before and behind shared taps lies NaN."""
    set_way(monkeypatch, banded)
    x, taps = inputs("lightweight", 1, kernel_size, 16)
    around = taps.new_full(((2 * kernel_size + 1) * HEADS, kernel_size), torch.nan)
    within = around[kernel_size * HEADS :][:HEADS].copy_(taps)
    compare(x, within, 1, kernel_size // 2, softmax=softmax)
    compare(x, within, 1, 0, softmax=softmax, **dropconnect(within))


@pytest.mark.parametrize("banded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_take_every_kernel(kind, banded, monkeypatch):
    set_way(monkeypatch, banded)
    compare_some(kind, 19, 2 if banded else 9, 5, heads=3)


@pytest.mark.parametrize("banded", [False, True])
@pytest.mark.parametrize("rows, channels, heads, run", [(16, 32, 1, 8), (32, 16, 4, 1)])
def test_blocks_of_any_shape(rows, channels, heads, run, banded, monkeypatch):
    set_convolution_blocks(monkeypatch, rows, channels, heads, run)
    set_way(monkeypatch, banded)
    compare_some("dynamic", rows + 3, 3, 20, heads=2)
    if banded:
        compare_some("lightweight", rows + 3, 20, 20, heads=1)


@pytest.mark.parametrize("grouped_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_taps_laid_out_for_every_version_of_triton(kind, grouped_first, monkeypatch):
    if GPU:
        pytest.skip("compiled kernels have the layout of the installed version")
    given = type(triton_tiles.GROUPED_FIRST)(grouped_first)
    monkeypatch.setattr(triton_tiles, "GROUPED_FIRST", given)
    compare_some(kind, 35, 31, 20)


@pytest.mark.parametrize("kind", KINDS)
def test_few_logits_far_from_zero(kind):
    x, taps = inputs(kind, 20, 3, 16)
    compare(x, taps + 1e5, 20, 2, softmax=True)
    compare(x, torch.full_like(taps, torch.finfo(taps.dtype).min), 20, 2, softmax=True)


def test_offsets_beyond_32_bits():
    x, taps = inputs("dynamic", 5, 3, 4, torch.float16)
    grad = torch.randn(x.shape, device=DEVICE).half()
    expected = with_gradients(kernels.convolve, (x, taps), grad, 5, 2)
    far = far_apart(x, 0)
    assert 4 * far.stride(0) > 2**31 and far.stride(0) == FAR
    far.requires_grad_(), taps.requires_grad_()
    y = kernels.convolve(far, taps, 5, 2)
    actual = y, *torch.autograd.grad(y, (far, taps), far_apart(grad, 0))
    assert_equal(actual, expected)


def test_grids_of_more_than_65535_blocks(monkeypatch):
    """Only the first dimension of a grid may have so many."""
    grids = record_grids(monkeypatch, kernels, "forward_by_taps", "backward_by_taps")
    x, taps = inputs("lightweight", 1, 1, 1, batch=70_000, heads=1)
    with_gradients(kernels.convolve, (x, taps), x, 1, 0)
    assert grids == [(70_000,)] * 2


def test_taps_of_another_precision():
    for kernel_size in (3, 31):
        x, taps = inputs("dynamic", 20, kernel_size, 16)
        for pair in ((x.half(), taps), (x, taps.half())):
            compare(*pair, 20, 2, softmax=True)


@needs_gpu  # Triton's interpreter has no races
@pytest.mark.parametrize("kind, kernel_size", [("dynamic", 7), ("lightweight", 31)])
def test_the_same_inputs_give_the_same_bits(kind, kernel_size):
    x, taps = inputs(kind, 3000, kernel_size, 16)
    dropped, grad = dropconnect(taps), torch.randn_like(x)

    def once():
        return with_gradients(kernels.convolve, (x, taps), grad, 3000, 3, softmax=True, **dropped)

    assert_equal(once(), once())


def test_says_what_it_cannot_take(monkeypatch):
    x, taps = inputs("dynamic", 5, 3, 4)
    assert not kernels.unfit(x, taps)
    assert "half precision, not torch.float64" in kernels.unfit(x.double(), taps)
    assert "half precision, not torch.float32 and torch.int64" in kernels.unfit(x, taps.long())
    assert "at most 64 taps, not 65" in kernels.unfit(*inputs("dynamic", 5, 65, 4))
    if not GPU:
        assert "needs a GPU for bfloat16" in kernels.unfit(x.bfloat16(), taps)
        monkeypatch.setattr(triton_tensors, "INTERPRETED", False)
        assert "TRITON_INTERPRET=1" in kernels.unfit(x, taps)
    else:
        monkeypatch.setattr(triton_tensors, "capability", lambda device: (7, 5))
        assert "capability 8.0" in kernels.unfit(x, taps)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_from_what_it_remembers(kind):
    convolution = dynamic_conv if kind == "dynamic" else lightweight_conv
    x, taps = inputs(kind, 7, 5, 4)
    past, pieces = Past.none(BATCH, x), []
    for t in range(7):
        here = taps[t : t + 1] if kind == "dynamic" else taps
        y, past = convolution(x[t : t + 1], here, causal=True, tail=past, impl="triton")
        pieces.append(y)
    whole = convolution(x, taps, causal=True, impl="reference")
    torch.testing.assert_close(torch.cat(pieces), whole)


def test_without_a_gpu_they_are_refused_unless_interpreted(monkeypatch):
    x, taps = inputs("dynamic", 5, 65, 4)
    with pytest.raises(ValueError, match="impl='triton' takes kernels of at most 64"):
        dynamic_conv(x, taps, causal=True, impl="triton")
    monkeypatch.setattr(triton_tensors, "INTERPRETED", False)
    x, taps = x.cpu(), taps[..., :3].cpu()
    with pytest.raises(ValueError, match="impl='triton' needs tensors on a GPU"):
        dynamic_conv(x, taps, causal=True, impl="triton")


@needs_gpu
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kernel_size", [1, 3, 7, 15, 31, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_large_inputs(own_blocks, kind, kernel_size, dtype):
    for time, head_dim, heads in ((1000, 64, 16), (517, 80, 5), (300, 3, 50), (1, 64, 16)):
        x, taps = inputs(kind, time, kernel_size, head_dim, dtype, batch=4, heads=heads)
        compare(x, taps, time, kernel_size - 1, softmax=True, **dropconnect(taps))


@needs_gpu
def test_more_elements_than_32_bits_count(own_blocks):
    x = torch.randn(2**17 + 5, 17, 1024, device=DEVICE, dtype=torch.float16)
    taps = torch.randn(16, 7, device=DEVICE)
    y = kernels.convolve(x, taps, x.size(0), 6, softmax=True)
    end = reference.convolve(x[-20:].double(), taps.double(), 14, 0, softmax=True)
    torch.testing.assert_close(y[-14:].double(), end, rtol=1e-2, atol=1e-2)
