"""The convolutions' Triton kernels against the formula: on a GPU, else interpreted."""

import importlib
import itertools

import pytest
import torch
from triton_cases import DEVICE, FAR, GPU, far_apart, needs_gpu, record_grids, triton_tensors

from fairseq_convattn.ops import Past, dynamic_conv, lightweight_conv

kernels = importlib.import_module("fairseq_convattn.ops.convolution.triton_kernels")

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # of rows left out
KINDS = ("lightweight", "dynamic")
BY_TAPS_AND_BY_BANDS = [("dynamic", 7), ("lightweight", 31)]
BATCH, HEADS = 1, 2
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = [
    torch.float32,
    torch.float16,
    pytest.param(torch.bfloat16, marks=needs_gpu),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, request):
    """So that short inputs have several."""
    if "own_blocks" not in request.fixturenames:
        set_blocks(monkeypatch, 16, 16, 2)


@pytest.fixture
def own_blocks():
    """Those for GPUs."""


def set_blocks(monkeypatch, rows, channels, heads):
    """The interpreter takes its time for a program: sentences that are long have longer blocks."""

    def blocks(time, head_dim, kernel_size, banded):
        size = rows if time <= 50 else 4 * rows
        return kernels.Blocks(size, 1 if banded else heads, channels, 4)

    monkeypatch.setattr(kernels, "_forward_blocks", blocks)
    monkeypatch.setattr(kernels, "_backward_blocks", blocks)


def set_way(monkeypatch, banded):
    monkeypatch.setattr(kernels, "_multiplies_bands", lambda *shape: banded)


def inputs(
    kind, time, kernel_size, head_dim, dtype=torch.float32, batch=BATCH, heads=HEADS, length=None
):
    torch.manual_seed(1000 * time + 10 * kernel_size + head_dim)
    shape = (time, batch, heads, kernel_size) if kind == "dynamic" else (heads, kernel_size)
    x = torch.randn(time if length is None else length, batch, heads * head_dim)
    return x.to(DEVICE, dtype), torch.randn(shape).to(DEVICE, dtype)


def dropconnect(taps, keep=0.7):
    return {"kept": torch.rand(taps.shape, device=taps.device) < keep, "keep": keep}


def formula(x, taps, time, left, softmax=False, kept=None, keep=1.0):
    """y[i, b, c] = sum_k w[(i, b,) head(c), k] x[i + k - left, b, c]."""
    w = taps.softmax(-1) if softmax else taps
    w = w if kept is None else w * kept / keep
    w = w.repeat_interleave(x.size(2) // w.size(-2), -2)
    beyond = x.new_zeros(1, *x.shape[1:])
    rows, y = torch.cat([beyond, x, beyond]), 0
    for k in range(w.size(-1)):
        at = (torch.arange(time, device=x.device) + k - left).clamp(-1, x.size(0)) + 1
        y = y + w[..., k] * rows[at]
    return y


def with_gradients(function, x, taps, grad, *arguments, **options):
    x, taps = x.detach().requires_grad_(), taps.detach().requires_grad_()
    y = function(x, taps, *arguments, **options)
    return y.detach(), *torch.autograd.grad(y, (x, taps), grad.to(y.dtype))


def compare(x, taps, time, left, tolerance=None, **options):
    grad = torch.randn(time, *x.shape[1:], device=x.device).to(x.dtype)
    actual = with_gradients(kernels.convolve, x, taps, grad, time, left, **options)
    wide = (t.double() for t in (x, taps, grad))
    expected = with_gradients(formula, *wide, time, left, **options)
    tolerance = tolerance or max(TOLERANCES[x.dtype], TOLERANCES[taps.dtype])
    for a, e, given in zip(actual, expected, (x, x, taps), strict=True):
        assert a.dtype == given.dtype and a.shape == e.shape and a.isfinite().all()
        if e.numel():
            error = (a.double() - e).abs().max() / max(1, e.abs().max())
            assert error <= tolerance, error


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
def test_is_the_formula(kind, shape):
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


@pytest.mark.parametrize("banded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_take_every_kernel(kind, banded, monkeypatch):
    set_way(monkeypatch, banded)
    compare_some(kind, 19, 2 if banded else 16, 5, heads=3)


@pytest.mark.parametrize("banded", [False, True])
@pytest.mark.parametrize("rows, channels, heads", [(16, 32, 1), (32, 16, 4)])
def test_blocks_of_any_shape(rows, channels, heads, banded, monkeypatch):
    set_blocks(monkeypatch, rows, channels, heads)
    set_way(monkeypatch, banded)
    compare_some("dynamic", 35, 3, 20, heads=2)
    if banded:
        compare_some("lightweight", 35, 20, 20, heads=1)


@pytest.mark.parametrize("kind, banded", [("lightweight", False), ("dynamic", True)])
def test_any_place_of_the_first_output(kind, banded, monkeypatch):
    set_way(monkeypatch, banded)
    places = ((20, 11, 13), (1, 3, 2), (3, 40, -5), (16, 0, 2), (20, 20, 60), (20, 20, -60))
    for time, length, left in places:
        x, taps = inputs(kind, time, 3, 16, length=length)
        compare(x, taps, time, left, softmax=True, **dropconnect(taps))


@pytest.mark.parametrize("kind, banded", [("dynamic", False), ("lightweight", True)])
def test_inputs_of_any_stride(kind, banded, monkeypatch):
    set_way(monkeypatch, banded)
    x, taps = inputs(kind, 18, 3, 16, batch=2)
    transposed = x.transpose(0, 1).contiguous().transpose(0, 1)
    channels_first = x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    sliced = torch.cat([x, x], dim=2)[:, :, x.size(2) // 2 : -x.size(2) // 2]
    spread = torch.stack([x, x], dim=-1)[..., 0]
    sequences = [transposed, channels_first, sliced, spread, x[:1].expand(x.shape)]
    kept = dropconnect(taps)["kept"].movedim(-1, 0).contiguous().movedim(0, -1)
    kernels_first = taps.movedim(-1, 0).contiguous().movedim(0, -1)
    strided = [torch.stack([taps, taps], dim=-1)[..., 0], kernels_first]
    if kind == "dynamic":
        strided += [taps[:1].expand(taps.shape), taps[:1, :1, :1, :1].expand(taps.shape)]
        strided += [taps.transpose(0, 1).contiguous().transpose(0, 1)]
    for sequence, weights in itertools.zip_longest(sequences, strided, fillvalue=taps):
        assert not sequence.is_contiguous()
        compare(sequence, weights, 18, 1, softmax=True, kept=kept, keep=0.7)


def test_offsets_beyond_32_bits():
    x, taps = inputs("dynamic", 5, 3, 4, torch.float16)
    grad = torch.randn(x.shape, device=DEVICE).half()
    expected = with_gradients(kernels.convolve, x, taps, grad, 5, 2)
    far = far_apart(x, 0)
    assert 4 * far.stride(0) > 2**31 and far.stride(0) == FAR
    far.requires_grad_(), taps.requires_grad_()
    y = kernels.convolve(far, taps, 5, 2)
    actual = y, *torch.autograd.grad(y, (far, taps), far_apart(grad, 0))
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def test_grids_of_more_than_65535_blocks(monkeypatch):
    """Only the first dimension of a grid may have so many."""
    grids = record_grids(monkeypatch, kernels, "forward_by_taps", "backward_by_taps")
    x, taps = inputs("lightweight", 1, 1, 1, batch=70_000, heads=1)
    with_gradients(kernels.convolve, x, taps, x, 1, 0)
    assert grids == [(70_000,)] * 2


def test_gradients_of_any_stride():
    x, taps = inputs("dynamic", 20, 31, 16)
    x.requires_grad_(), taps.requires_grad_()
    y = kernels.convolve(x, taps, 20, 30, softmax=True)
    expected = torch.autograd.grad(y, (x, taps), torch.ones_like(y), retain_graph=True)
    actual = torch.autograd.grad(y.sum(), (x, taps))
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize("kind, kernel_size", BY_TAPS_AND_BY_BANDS)
def test_one_gradient_alone(kind, kernel_size):
    x, taps = inputs(kind, 20, kernel_size, 16, length=50)
    grad = torch.randn(20, *x.shape[1:], device=DEVICE)
    both = with_gradients(kernels.convolve, x, taps, grad, 20, 3, softmax=True)
    for wanted, expected in zip((x, taps), both[1:], strict=True):
        wanted.requires_grad_()
        y = kernels.convolve(x, taps, 20, 3, softmax=True)
        (actual,) = torch.autograd.grad(y, wanted, grad)
        assert torch.equal(actual, expected)
        wanted.requires_grad_(False)


def test_taps_of_another_precision():
    for kernel_size in (3, 31):
        x, taps = inputs("dynamic", 20, kernel_size, 16)
        for pair in ((x.half(), taps), (x, taps.half())):
            compare(*pair, 20, 2, softmax=True)


@pytest.mark.parametrize("kernel_size", [7, 31])
def test_large_logits(kernel_size):
    x, taps = inputs("dynamic", 20, kernel_size, 16)
    compare(x, 300 * taps, 20, 2, tolerance=1e-4, softmax=True)
    taps[..., 1:3] = -float("inf")
    compare(x, taps, 20, 2, softmax=True)


@pytest.mark.parametrize("kind, kernel_size", BY_TAPS_AND_BY_BANDS)
def test_every_output_is_written(kind, kernel_size, monkeypatch):
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
        assert torch.empty(3).isnan().all()
        for length in (3, 60):
            x, taps = inputs(kind, 20, kernel_size, 20, length=length)
            compare(x, taps, 20, 2, softmax=True)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentences(kind):
    x, taps = inputs(kind, 5, 3, 4, batch=0)
    compare(x, taps, 5, 2, softmax=True)


@pytest.mark.parametrize("kind, kernel_size", BY_TAPS_AND_BY_BANDS)
def test_what_is_not_finite_stays_in_its_sentence(kind, kernel_size):
    x, taps = inputs(kind, 20, kernel_size, 16, batch=3)
    grad = torch.randn_like(x)
    x[10, 1, 3] = grad[10, 1, 4] = float("nan")
    if kind == "dynamic":
        taps[10, 1, 0, 0] = float("nan")
    y, x_grad, taps_grad = with_gradients(kernels.convolve, x, taps, grad, 20, 3, softmax=True)
    found = [y, x_grad] + [taps_grad] * (kind == "dynamic")
    for tensor in found:
        assert tensor[:, 1].isnan().any() and tensor[:, ::2].isfinite().all()


@pytest.mark.parametrize("kind, kernel_size", BY_TAPS_AND_BY_BANDS)
def test_the_same_inputs_give_the_same_bits(kind, kernel_size):
    x, taps = inputs(kind, 20, kernel_size, 16)
    dropped, grad = dropconnect(taps), torch.randn_like(x)

    def once():
        return with_gradients(kernels.convolve, x, taps, grad, 20, 3, softmax=True, **dropped)

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


@pytest.mark.parametrize("kind, softmax", [("dynamic", True), ("lightweight", False)])
def test_operators_keep_pytorchs_rules(kind, softmax):
    x, taps = inputs(kind, 9, 3, 4)
    kept = dropconnect(taps)["kept"]
    x.requires_grad_(), taps.requires_grad_()
    for mask in (None, kept):
        arguments = (x, taps, mask, 9, 2, softmax, 0.7)
        torch.library.opcheck(torch.ops.convattn.convolve_triton.default, arguments)
    _, lse = torch.ops.convattn.convolve_triton(*arguments)
    x, taps = x.detach(), taps.detach()
    arguments = (torch.randn_like(x), lse, x, taps, kept, 2, softmax, 0.7, True, True)
    torch.library.opcheck(torch.ops.convattn.convolve_triton_backward.default, arguments)




def test_second_derivatives_say_what_to_do():
    x, taps = inputs("dynamic", 5, 3, 4)
    x.requires_grad_()
    y = kernels.convolve(x, taps, 5, 2, softmax=True)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="CONVATTN_IMPL=reference"):
        grad.sum().backward()


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


def test_operators_refuse_what_does_not_go_together():
    x, taps = inputs("dynamic", 9, 3, 4, batch=2)
    wrong = [(x, taps, 10), (x, taps[:, :1], 9), (x[..., :7], taps, 9), (x.double(), taps, 9)]
    for x_, taps_, time in wrong:
        with pytest.raises(ValueError, match="taps"):
            kernels.convolve(x_, taps_, time, 2)
    with pytest.raises(ValueError, match="kept"):
        kernels.convolve(x, taps, 9, 2, kept=taps[:1] > 0.5)


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
    end = formula(x[-20:].double(), taps.double(), 14, 0, softmax=True)
    torch.testing.assert_close(y[-14:].double(), end, rtol=1e-2, atol=1e-2)
