"""The short convolutions' Triton kernels against the formula: on a GPU, else interpreted."""

import importlib
from functools import partial

import pytest
import torch
from kernel_cases import assert_equal, with_gradients
from test_short_convolution import ALL_KINDS, BATCH, KINDS, convolve, inputs
from test_short_convolution import formula as papers_sum
from triton_cases import DEVICE, FAR, GPU, far_apart, needs_gpu, record_grids, triton_tensors

from fairseq_convattn.ops import low_rank_short_conv, short_conv
from fairseq_convattn.ops.convolution import reference as convolution
from fairseq_convattn.ops.short_convolution import reference

low_rank, headwise = (
    importlib.import_module(f"fairseq_convattn.ops.short_convolution.{name}")
    for name in ("triton_launch", "triton_headwise")
)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=needs_gpu)]
# interpreted, half precision is as float32 but for its rounding
FLOAT32_UNLESS_COMPILED = DTYPES if GPU else [torch.float32]


def set_blocks(monkeypatch, of_low_rank, of_heads):
    monkeypatch.setattr(low_rank, "_blocks", lambda *_: dict.fromkeys(low_rank.FEW, of_low_rank))
    for name in ("_forward_blocks", "_backward_blocks"):
        monkeypatch.setattr(headwise, name, lambda *_: of_heads)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch, request):
    """So that short inputs have several tiles, unless a test wants the kernels' own blocks."""
    if "own_blocks" not in request.fixturenames:
        for module in (low_rank, headwise):
            monkeypatch.setattr(module, "CHANNELS", 16)
        of_heads = headwise.Blocks(4, 128, 1, 4)
        set_blocks(monkeypatch, low_rank.Blocks(16, 2, 4, 1, 4), of_heads)


@pytest.fixture
def own_blocks():
    """Keep the kernels' own block sizes."""


def operator_and_inputs(kind, time, taps, channels, **options):
    """A static kernel is a head-wise one without heads."""
    of_kind = inputs(
        "low_rank" if kind == "low_rank" else "headwise", time, taps, channels, **options
    )
    x, by_position, up, *_ = (t.to(DEVICE) for t in of_kind)
    if kind == "static":
        by_position = by_position[:, :, :0]
    operator = (low_rank if kind == "low_rank" else headwise).convolve
    return operator, [x, by_position, up]


def formula(x, by_position, up, left, own):
    """Of what either operator takes."""
    if by_position.dim() == 3:
        return reference.convolve(x, by_position, up, left, own)
    z = by_position.new_ones(*by_position.shape[:2], 1)
    y = reference.convolve(x, z, up.t()[None], left, own)
    if not by_position.size(2):
        return y + by_position.sum()  # so that it has a gradient
    return y + convolution.convolve(x, by_position, len(by_position), left)


def assert_is_the_formula(operator, tensors, grad, left, own):
    actual = with_gradients(operator, tensors, grad, left, own)
    expected = with_gradients(formula, [t.double() for t in tensors], grad.double(), left, own)
    for a, e, like in zip(actual, expected, (tensors[0], *tensors), strict=True):
        assert a.dtype == like.dtype and a.shape == e.shape
        far = TOLERANCES[grad.dtype] * max(1, e.abs().max()) if e.numel() else 0
        torch.testing.assert_close(a.double(), e, rtol=0, atol=far)


@pytest.mark.parametrize("dtype", FLOAT32_UNLESS_COMPILED, ids=str)
@pytest.mark.parametrize(
    "time, taps, channels, rank, before, own",
    [
        (1, 1, 3, 1, 0, 0),
        (2, 4, 20, 16, 0, 3),
        (33, 4, 20, 3, 2, -1),
        (32, 4, 20, 3, 2, -1),
        (33, 4, 20, 1, 2, 3),
        (40, 5, 16, 17, 0, 2),
        (20, 3, 40, 2, 2, 2),
    ],
)
def test_is_the_formula(time, taps, channels, rank, before, own, dtype):
    x, z, up, _ = (t.to(DEVICE, dtype) for t in inputs("low_rank", time, taps, channels, rank=rank))
    x = torch.cat([torch.randn_like(x[:1]).expand(before, -1, -1), x])
    left = (own if own >= 0 else taps - 1) - before
    grad = torch.randn_like(x[:time])
    assert_is_the_formula(low_rank.convolve, (x, z, up), grad, left, own)


@pytest.mark.parametrize("dtype", FLOAT32_UNLESS_COMPILED, ids=str)
@pytest.mark.parametrize("kind", ["static", "headwise"])
@pytest.mark.parametrize(
    "time, taps, channels, before, own",
    [(1, 1, 2, 0, 0), (2, 4, 20, 0, 3), (33, 4, 32, 2, -1), (20, 5, 34, 0, 2), (5, 3, 256, 2, 2)],
)
def test_is_the_formula_without_z(kind, time, taps, channels, before, own, dtype):
    operator, (x, *factors) = operator_and_inputs(kind, time, taps, channels, dtype=dtype)
    x = torch.cat([torch.randn_like(x[:1]).expand(before, -1, -1), x])
    left = (own if own >= 0 else taps - 1) - before
    assert_is_the_formula(operator, (x, *factors), torch.randn_like(x[:time]), left, own)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("taps", [4, pytest.param(6, marks=() if GPU else pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_own_blocks(own_blocks, kind, taps, dtype):
    """Of several tiles, and of widths that are not powers of two."""
    sizes = [(1, 64), (37, 80)] if DEVICE == "cpu" else [(1, 64), (5, 6), (257, 80), (700, 256)]
    for time, channels in sizes:
        operator, tensors = operator_and_inputs(kind, time, taps, channels, dtype=dtype)
        grad = torch.randn_like(tensors[0])
        assert_is_the_formula(operator, tensors, grad, taps - 1, taps - 1)


@pytest.mark.parametrize("dtype", FLOAT32_UNLESS_COMPILED, ids=str)
@pytest.mark.parametrize("time, taps, before", [(1, 17, 16), (33, 17, 2), (17, 32, 0)])
def test_own_blocks_of_long_static_kernels(own_blocks, time, taps, before, dtype):
    """Also of a single position, and continued."""
    operator, (x, of_none, static) = operator_and_inputs("static", time, taps, 20, dtype=dtype)
    x = torch.cat([torch.randn_like(x[:1]).expand(before, -1, -1), x])
    tensors, grad = (x, of_none, static), torch.randn_like(x[:time])
    assert_is_the_formula(operator, tensors, grad, taps - 1 - before, taps - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_any_strides_and_one_gradient_at_a_time(kind):
    operator, tensors = operator_and_inputs(kind, 9, 3, 20, dtype=torch.float32, rank=17)
    x = tensors[0]
    expected = with_gradients(operator, tensors, x, 2, 2)
    strange = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in tensors]
    assert_equal(with_gradients(operator, strange, x, 2, 2), expected)
    for n in range(3):
        tensors = [t.detach() for t in tensors]
        tensors[n].requires_grad_()
        (alone,) = torch.autograd.grad(operator(*tensors, 2, 2), tensors[n], x)
        torch.testing.assert_close(alone, expected[n + 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_any_stride(kind):
    operator, tensors = operator_and_inputs(kind, 17, 2, 6, dtype=torch.float32)
    y = operator(*(t.requires_grad_() for t in tensors), 1, 1)
    grad = torch.randn(6, BATCH, 17, device=DEVICE).transpose(0, 2)
    for strided in (grad, grad[..., :1].expand(y.shape)):
        actual = torch.autograd.grad(y, tensors, strided, retain_graph=True)
        expected = torch.autograd.grad(y, tensors, strided.contiguous(), retain_graph=True)
        for a, e in zip(actual, expected, strict=True):  # strides choose the order of sums on a GPU
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


@needs_gpu  # Triton's interpreter has no races
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_inputs_give_the_same_bits(kind):
    operator, tensors = operator_and_inputs(kind, 3000, 2, 20, dtype=torch.float32)
    grad = torch.randn_like(tensors[0])

    def once():
        return with_gradients(operator, tensors, grad, 1, 1)

    assert_equal(once(), once())


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_goes_on_from_a_tail(kind):
    """In pieces shorter than the inputs that a kernel sees before them."""
    tensors = [t.float().to(DEVICE) for t in inputs(kind, 8, 5)]

    def in_pieces(x, *factors):
        pieces, tail, start = [], x[:0], 0
        for size in (1, 2, 2, 3):
            steps = slice(start, start + size)
            here = factors if kind == "static" else (factors[0][steps], *factors[1:])
            y, tail = convolve(kind, x[steps], *here, causal=True, tail=tail, impl="triton")
            pieces.append(y)
            start += size
        return torch.cat(pieces)

    actual = with_gradients(in_pieces, tensors, tensors[0])
    wide = [t.double() for t in tensors]
    expected = with_gradients(
        lambda *given: convolve(kind, *given, causal=True, impl="reference"), wide, wide[0]
    )
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 3])
def test_products_beyond_float16(rank):
    """A gradient, which a loss scale enlarges, times an input; and either when it is small."""
    x, z, up, _ = (t.to(DEVICE) for t in inputs("low_rank", 20, 4, 20, rank=rank))
    for scale, large in ((1e-4, 1e-5), (300, 200)):
        tensors = [(x * scale).half(), (z / 100).half(), (up / 100).half()]
        grad = (torch.randn_like(x) * large).half()
        _, _, *actual = with_gradients(low_rank.convolve, tensors, grad, 3, 3)
        wide = [t.double() for t in tensors]
        _, _, *expected = with_gradients(reference.convolve, wide, grad.double(), 3, 3)
        for a, e in zip(actual, expected, strict=True):
            e = e.half()
            assert a.isfinite().all() and torch.allclose(a, e, rtol=1e-2, atol=1e-2 * e.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_factors_of_another_dtype(kind):
    """Their gradients may be beyond the dtype of x."""
    operator, (x, *factors) = operator_and_inputs(kind, 20, 4, 20)
    tensors = [(x * 100).half(), *(t.float() for t in factors)]
    grad = (torch.randn_like(x) * 100).half()
    actual = with_gradients(operator, tensors, grad, 3, 3)
    expected = with_gradients(formula, [t.double() for t in tensors], grad.double(), 3, 3)
    assert expected[3].abs().max() > torch.finfo(torch.float16).max
    for a, e, like in zip(actual, expected, (x.half(), *tensors), strict=True):
        far = 1e-2 * e.abs().max().item() if e.numel() else 0
        assert a.dtype == like.dtype and a.isfinite().all()
        torch.testing.assert_close(a.double(), e, rtol=1e-2, atol=far)


@pytest.mark.parametrize("kind", KINDS)
def test_more_channels_than_programs(kind, monkeypatch):
    """The gradient of up has a program for each block of channels at least."""
    of_low_rank = low_rank.Blocks(16, 2, 4, programs=1)
    set_blocks(monkeypatch, of_low_rank, headwise.Blocks(4, 256, 4, programs=1))
    operator, tensors = operator_and_inputs(kind, 5, 2, 40, dtype=torch.float32)
    actual = with_gradients(operator, tensors, tensors[0], 1, 1)
    expected = with_gradients(formula, tensors, tensors[0], 1, 1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_channels(kind):
    operator, (x, by_position, up) = operator_and_inputs(kind, 4, 4, 2)
    none = x[..., :0], by_position, up[..., :0] if kind == "low_rank" else up[:0]
    for found in with_gradients(operator, [t.float() for t in none], none[0], 3, 3):
        assert not found.any()


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_beyond_32_bits(kind):
    operator, (x, *factors) = operator_and_inputs(kind, 5, 2, 4, dtype=torch.float16)
    expected = with_gradients(operator, (x, *factors), x, 1, -1)
    far = far_apart(x, 0)
    assert 4 * far.stride(0) > 2**31 and far.stride(0) == FAR
    tensors = [t.requires_grad_() for t in (far, *factors)]
    y = operator(*tensors, 1, -1)
    actual = y, *torch.autograd.grad(y, tensors, far_apart(x, 0))
    assert_equal(actual, expected)


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("static", [(140_000,), (4,)]),
        ("headwise", [(140_000,), (4,)]),
        ("low_rank", [(70_000,), (70_000,), (70_000,), (4,)]),
    ],
)
def test_grids_of_more_than_65535_blocks(kind, expected, monkeypatch):
    """Only the first dimension of a grid may have so many."""
    names = "forward", "backward", "backward_x", "backward_up", "backward_z"
    module = low_rank if kind == "low_rank" else headwise
    grids = record_grids(monkeypatch, module, *(name for name in names if hasattr(module, name)))
    operator, (x, by_position, up) = operator_and_inputs(kind, 1, 4, 20, dtype=torch.float32)
    x, by_position = (t[:, :1].repeat_interleave(70_000, 1) for t in (x, by_position))
    with_gradients(operator, (x, by_position, up), x, 3, 3)
    assert grids == expected
    if kind == "headwise":
        grids.clear()
        y = operator(x, by_position.requires_grad_(), up, 3, 3)
        torch.autograd.grad(y, by_position, x)
        assert grids == [(140_000,), (140_000,)]


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("residual", [True, False])
def test_is_what_the_functions_give(kind, residual):
    tensors = [t.float().to(DEVICE) for t in inputs(kind, 20, 4)]
    actual = convolve(kind, *tensors, causal=True, residual=residual, impl="triton")
    expected = papers_sum(kind, *tensors, causal=True, residual=residual)
    torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_kernels(kind, monkeypatch):
    """Those of low rank would serve static ones, too, more slowly."""
    launched = record_grids(monkeypatch, headwise, "backward")
    others = record_grids(monkeypatch, low_rank, "backward_x", "backward_up", "backward_z")
    tensors = [t.float().to(DEVICE).requires_grad_() for t in inputs(kind, 20, 4)]
    convolve(kind, *tensors, causal=True, impl="triton").sum().backward()
    assert (len(launched), len(others)) == ((0, 3) if kind == "low_rank" else (1, 0))


@pytest.mark.parametrize("kind, taps", [("low_rank", 17), ("static", 33), ("headwise", 33)])
def test_more_taps_than_the_kernels_take(kind, taps):
    tensors = [t.float().to(DEVICE) for t in inputs(kind, 20, taps)]
    message = (
        f"impl='triton' takes kernels of at most 16 taps, static ones of at most 32, not {taps}"
    )
    with pytest.raises(ValueError, match=message):
        convolve(kind, *tensors, causal=True, impl="triton")


@pytest.mark.parametrize("kind", ["static", "headwise"])
def test_static_kernels_of_more_taps_than_those_of_heads(kind):
    tensors = [t.float().to(DEVICE) for t in inputs(kind, 20, 17)]
    grad = torch.randn_like(tensors[0])
    options = {"causal": False, "residual": False}
    actual = with_gradients(partial(convolve, kind, **options, impl="triton"), tensors, grad)
    wide = [t.double() for t in tensors]
    expected = with_gradients(
        partial(convolve, kind, **options, impl="reference"), wide, grad.double()
    )
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("taps", [4, 17])
def test_another_reason_is_told_before_that_of_taps(taps):
    x, static = inputs("static", 20, taps)
    with pytest.raises(ValueError, match="takes float32 and half precision, not torch.float64"):
        short_conv(x.to(DEVICE), None, static.to(DEVICE), causal=True, impl="triton")


def test_operator_keeps_pytorchs_rules():
    tensors = [t.float().to(DEVICE).requires_grad_() for t in inputs("low_rank", 5, 3)[:3]]
    operator = torch.ops.convattn.short_convolve_triton.default
    torch.library.opcheck(operator, (*tensors, 2, 2))
    x, z, up = tensors
    transposed = z.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    torch.library.opcheck(operator, (x, transposed, up, 2, 2))
    assert triton_tensors.unfit(*tensors) == low_rank.unfit(*tensors) == ""
    with pytest.raises(ValueError, match="impl='triton' takes float32"):
        low_rank_short_conv(*(t.double() for t in tensors), causal=True, impl="triton")


def test_takes_as_many_ranks_as_a_program_can_hold():
    x, z, up = torch.zeros(2, 1, 4), torch.zeros(2, 1, 64), torch.zeros(64, 4, 4)
    x, z, up = (t.to(DEVICE) for t in (x, z, up))
    assert not low_rank.unfit(x, z, up)
    more = torch.cat([z, z], dim=2), torch.cat([up, up])
    assert "at most 64 ranks" in low_rank.unfit(x, *more)


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_refuses_taps_of_another_shape(impl):
    x, _, static = (t.float().to(DEVICE) for t in inputs("headwise", 5, 4))
    for shape in ((5, BATCH, 4), (5, 4), (4,), (5, BATCH, 4, 4), (5, BATCH, 0, 4)):
        with pytest.raises(ValueError, match="taps must be|heads do not divide"):
            short_conv(x, torch.zeros(shape, device=DEVICE), static, causal=True, impl=impl)


def test_headwise_operator_keeps_pytorchs_rules():
    operator = torch.ops.convattn.short_convolve_headwise_triton.default
    for kind in ("static", "headwise"):
        _, tensors = operator_and_inputs(kind, 5, 3, 6, dtype=torch.float32)
        torch.library.opcheck(operator, (*(t.requires_grad_() for t in tensors), 2, 2))
    x, taps, static = (t.detach() for t in tensors)
    for given in (
        (x, taps[:, :1], static, 2, 2),
        (x, taps, static[:1], 2, 2),
        (x, taps, static, 3, 2),
    ):
        with pytest.raises(ValueError, match="static"):
            operator(*given)
