"""Short convolutions against the paper's formula, written out in loops."""

import itertools
from functools import partial

import pytest
import torch
from kernel_cases import (
    NATIVE,
    assert_equal,
    kernels_for,
    needs_kernels,
    with_gradients,
    with_threads,
)

from fairseq_convattn.ops import (
    Past,
    dynamic_conv,
    low_rank_short_conv,
    short_conv,
    use_implementation,
)
from fairseq_convattn.ops.native import is_built
from fairseq_convattn.ops.short_convolution import native, tiled

KINDS = ("static", "headwise", "low_rank")
ALL_KINDS = (*KINDS, "taps")  # headwise without static kernel
IMPLEMENTATIONS = ["reference", "tiled", NATIVE]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
BATCH, HEADS, RANK = 2, 2, 3
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "sliced": lambda x: torch.cat([x, x], dim=-1)[..., 1 : x.size(-1) + 1],
    "spread": lambda x: torch.stack([x, x], dim=-1)[..., 0],
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that short inputs have several."""
    monkeypatch.setattr(tiled, "TILE", 16)


def inputs(kind, time, taps, channels=6, dtype=torch.float64, rank=RANK):
    """x, and what the convolution of a kind takes besides."""
    torch.manual_seed(100 * time + taps)
    shapes = {
        "static": [(channels, taps)],
        "headwise": [(time, BATCH, HEADS, taps), (channels, taps)],
        "taps": [(time, BATCH, HEADS, taps)],
        "low_rank": [(time, BATCH, rank), (rank, taps, channels), (channels, taps)],
    }
    return [torch.randn(s, dtype=dtype) for s in [(time, BATCH, channels), *shapes[kind]]]


def convolve(kind, x, *factors, **options):
    if kind == "low_rank":
        return low_rank_short_conv(x, *factors, **options)
    return short_conv(x, *([None] if kind == "static" else []), *factors, **options)


def kernels(kind, x, *factors):
    """``[time, batch, channels, taps]``, in double precision."""
    factors = [t.double() for t in factors]
    static = 0 if kind == "taps" else factors.pop()
    if kind in ("headwise", "taps"):
        return factors[0].repeat_interleave(x.size(2) // HEADS, 2) + static
    if kind == "low_rank":
        return torch.einsum("tbr,rkc->tbck", *factors) + static
    return static.expand(*x.shape[:2], -1, -1)


def formula(kind, x, *factors, causal, residual=True):
    """y[t] = x[t] + sum_w (k[t, w] + s[w]) x[t - w], w from -(taps - 1 - taps // 2) on where it is
    centred; the last tap is the one of the smallest w."""
    x, every = x.double(), kernels(kind, x, *factors)
    time, taps = x.size(0), every.size(-1)
    smallest = 0 if causal else taps // 2 - taps + 1
    rows = []
    for t in range(time):
        row = x[t] if residual else torch.zeros_like(x[t])
        for n in range(taps):
            w = smallest + n
            if 0 <= t - w < time:
                row = row + every[t, :, :, taps - 1 - n] * x[t - w]
        rows.append(row)
    return torch.stack(rows)


def compare(kind, tensors, impl, tolerance, **options):
    grad = torch.randn_like(tensors[0])
    actual = with_gradients(partial(convolve, kind), tensors, grad, impl=impl, **options)
    wide = [t.double() for t in tensors]
    expected = with_gradients(partial(formula, kind), wide, grad.double(), **options)
    for a, e, like in zip(actual, expected, (tensors[0], *tensors), strict=True):
        assert a.dtype == like.dtype and a.shape == like.shape
        error = (a.double() - e).abs().max() / max(1, e.abs().max())
        assert error <= tolerance, (impl, options, error)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("taps", [1, 4, 5, 9])
def test_is_the_papers_sum(kind, taps, impl):
    dtype = torch.float32 if impl == "native" else torch.float64
    shapes = itertools.product((1, 2, taps, 65), ((6, 1), (70, RANK), (6, 17)))
    for (time, (channels, rank)), (causal, residual) in zip(
        shapes, itertools.cycle(itertools.product((True, False), repeat=2)), strict=False
    ):
        tensors = inputs(kind, time, taps, channels, dtype, rank)
        compare(kind, tensors, impl, TOLERANCES[dtype], causal=causal, residual=residual)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_autocast_changes_nothing(kind, impl):
    tensors = inputs(kind, 40, 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = convolve(kind, *tensors, causal=True, impl=impl)
    assert torch.equal(y, convolve(kind, *tensors, causal=True, impl=impl))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_any_dtype_and_any_strides(kind, impl):
    for dtype, layout, channels in itertools.product(TOLERANCES, LAYOUTS, (64, 66)):
        if impl == "native" and dtype not in native.DTYPES:
            continue
        tensors = [LAYOUTS[layout](t) for t in inputs(kind, 40, 4, channels, dtype)]
        compare(kind, tensors, impl, TOLERANCES[dtype], causal=True)


@needs_kernels
@pytest.mark.parametrize("kind, factors", [("static", 1), ("headwise", 2), ("low_rank", 2)])
def test_native_tensors_of_different_dtypes(kind, factors):
    for dtypes in itertools.product(native.DTYPES, repeat=1 + factors):
        dtypes = (*dtypes, dtypes[-1])  # static kernels of low_rank are one of its ranks
        tensors = inputs(kind, 70, 4, 32 * HEADS, torch.bfloat16)
        tensors = [t.to(dtype) for t, dtype in zip(tensors, dtypes, strict=False)]
        compare(kind, tensors, "native", TOLERANCES[torch.bfloat16], causal=True)


@needs_kernels
@pytest.mark.parametrize("kind, heads", [("low_rank", 1), ("headwise", 20)])
def test_native_sums_of_many_ranks_or_taps(monkeypatch, kind, heads):
    """More than the 64 that are summed at once."""
    monkeypatch.setitem(globals(), "HEADS", heads)
    for dtype in native.DTYPES:
        tensors = inputs(kind, 9, 5, 320, dtype, rank=70)
        compare(kind, tensors, "native", TOLERANCES[dtype], causal=True)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("residual", [True, False])
def test_chunks_from_a_tail_are_the_papers_sum(kind, impl, chunk, residual):
    dtype = torch.float32 if impl == "native" else torch.float64
    x, *factors = inputs(kind, 13, 4, dtype=dtype)
    whole = formula(kind, x, *factors, causal=True, residual=residual).to(dtype)
    options = {"causal": True, "residual": residual, "impl": impl}
    tail, pieces, by_position = x[:0], [], kind != "static"
    for start in range(0, x.size(0), chunk):
        steps = slice(start, start + chunk)
        some = [factors[0][steps], *factors[1:]] if by_position else factors
        y, tail = convolve(kind, x[steps], *some, tail=tail, **options)
        assert tail.size(0) == min(3, start + y.size(0))
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("impl", ["reference", "tiled"])
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("time, taps, before", [(1, 3, 2), (5, 4, 1), (35, 2, 4), (4, 4, None)])
def test_gradients(kind, impl, time, taps, before):
    tensors = [t.requires_grad_() for t in inputs(kind, time, taps)]
    tail = torch.randn(before or 0, BATCH, 6, dtype=torch.float64, requires_grad=True)

    def function(tail, *tensors):
        if before is None:
            return convolve(kind, *tensors, causal=False, impl=impl)
        return convolve(kind, *tensors, causal=True, tail=tail, impl=impl)

    assert torch.autograd.gradcheck(function, (tail, *tensors), fast_mode=time > 10)


@needs_kernels
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("tokens", [1, 1000], ids=["sentence by sentence", "all sentences at once"])
@pytest.mark.parametrize("time, taps, before", [(1, 3, 2), (5, 4, 1), (70, 5, 4)])
def test_native_gradients_reach_what_came_before(monkeypatch, kind, time, taps, before, tokens):
    monkeypatch.setattr(native, "TOKENS", tokens)
    monkeypatch.setattr(native, "PIECES", 1)
    tensors = inputs(kind, time, taps, dtype=torch.float32)
    tail, grad = torch.randn(before, BATCH, 6), torch.randn_like(tensors[0])

    def run(tail, *tensors, impl):
        return convolve(kind, *tensors, causal=True, tail=tail, impl=impl)[0]

    every = (tail, *tensors)
    actual = with_gradients(run, every, grad, impl="native")
    expected = with_gradients(run, [t.double() for t in every], grad.double(), impl="reference")
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", ["tiled", NATIVE])
def test_kernels_are_not_kept(impl):
    x, z, up, static = inputs("low_rank", 200, 4, 64, torch.float32)
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        low_rank_short_conv(x, z, up.requires_grad_(), static, causal=True, impl=impl)
    assert 0 < sum(kept) < x.numel() * 4


def test_the_default_is_the_fastest_that_can_take_the_inputs():
    """And what is asked for is had or refused."""
    x, z, up, static = inputs("low_rank", 20, 4)
    expected = low_rank_short_conv(x, z, up, static, causal=True, impl="reference")
    torch.testing.assert_close(low_rank_short_conv(x, z, up, static, causal=True), expected)
    assert torch.func.vmap(lambda z: low_rank_short_conv(x, z, up, causal=True))(z[None]).shape[0]
    with pytest.raises(ValueError, match="impl='native'"):
        low_rank_short_conv(x, z, up, causal=True, impl="native")
    with use_implementation("tiled"):
        y = low_rank_short_conv(x, z, up, static, causal=True)
        torch.testing.assert_close(y, expected)
        taps = torch.einsum("tbr,rkc->tbck", z, up)
        y = short_conv(x, taps, static, causal=True)
        torch.testing.assert_close(y, expected)
    with pytest.raises(ValueError, match="unknown impl 'loop'"):
        low_rank_short_conv(x, z, up, causal=True, impl="loop")


def test_operator_refuses_what_is_not_in_memory():
    x, z, up, _ = inputs("low_rank", 20, 4)
    operator = torch.ops.convattn.short_convolve
    for own in (4, 1000, -2):
        with pytest.raises(ValueError):
            operator(x.float(), z.float(), up.float(), 3, own)
    with pytest.raises(ValueError):
        arguments = x.float(), z.float(), up.float(), 3, -1, [True] * 3
        torch.ops.convattn.short_convolve_backward(x.float()[:2], *arguments)
    with pytest.raises(ValueError):
        torch.ops.convattn.short_convolve(x.float(), z[:0].float(), up.float(), 3, 3)
    heads = inputs("headwise", 20, 4, 2 * 24, torch.float32)
    reason = "multiple of 64 channels, not of 24" if is_built() else "was not compiled"
    with pytest.raises(ValueError, match=reason):
        torch.ops.convattn.short_convolve_headwise(*heads, 3, 3)


def test_heads_without_channels():
    x, taps, static = inputs("headwise", 5, 3, 0, torch.float32)
    y, *gradients = with_gradients(partial(short_conv, causal=True), [x, taps, static], x)
    assert y.shape == (5, BATCH, 0) and not gradients[1].any()


@needs_kernels
@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
def test_operator_keeps_pytorchs_rules(dtype):
    x, z, up, _ = inputs("low_rank", 7, 3, dtype=dtype)
    arguments = [t.requires_grad_() for t in (x, z, up)]
    torch.library.opcheck(torch.ops.convattn.short_convolve.default, (*arguments, 2, -1))
    of_heads = [t.requires_grad_() for t in inputs("headwise", 7, 3, 64, dtype)]
    torch.library.opcheck(torch.ops.convattn.short_convolve_headwise.default, (*of_heads, 2, -1))
    with pytest.raises(RuntimeError, match="no second derivatives"):
        y = low_rank_short_conv(*arguments, causal=True, impl="native")
        (grad,) = torch.autograd.grad(y.sum(), up, create_graph=True)
        torch.autograd.grad(grad.sum(), x)


@needs_kernels
@pytest.mark.parametrize("rank", [3, 16])
def test_gradients_have_the_layout_that_compilers_expect(rank):
    """Kernels pad the ranks to 16 and the channels to their panels."""
    x, z, up = torch.randn(9, 2, 24), torch.randn(9, 2, rank), torch.randn(rank, 4, 24)
    operator = torch.ops.convattn.short_convolve_backward.default
    torch.library.opcheck(operator, (torch.randn(9, 2, 24), x, z, up, 2, -1, [True] * 3))
    of_heads = inputs("headwise", 9, 4, 32, torch.float32)
    operator = torch.ops.convattn.short_convolve_headwise_backward.default
    torch.library.opcheck(operator, (of_heads[0], *of_heads, 2, -1, [True] * 3))


@needs_kernels
@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512", "amx"])
def test_every_instruction_set(instructions):
    with kernels_for(instructions):
        for dtype in native.DTYPES:
            for kind, channels in (("low_rank", 70), ("static", 70), ("headwise", 64)):
                tensors = inputs(kind, 70, 4, channels, dtype, 17)
                compare(kind, tensors, "native", TOLERANCES[dtype], causal=False)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("taps", [1, 3, 5])
def test_odd_taps_of_many_channels(taps, threads):
    """AMX computes two taps at once, and two threads take a panel of channels each."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tensors = inputs("low_rank", 70, taps, 600, torch.bfloat16, 17)
        compare("low_rank", tensors, "native", TOLERANCES[torch.bfloat16], causal=True)
    finally:
        torch.set_num_threads(before)


@needs_kernels
@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512", "amx"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_some_sentences_at_a_time(monkeypatch, kind, instructions):
    """Five in pieces of two, whose gradients of the kernels are summed."""
    monkeypatch.setattr(native, "TOKENS", 10)
    monkeypatch.setattr(native, "PIECES", 3)
    monkeypatch.setitem(globals(), "BATCH", 5)
    with kernels_for(instructions):
        for dtype in native.DTYPES:
            tensors = inputs(kind, 6, 4, 32, dtype=dtype)
            compare(kind, tensors, "native", TOLERANCES[dtype], causal=True)


@pytest.fixture
def passes(monkeypatch):
    """A list that gets the number of heads at every call of the kernels for heads."""
    found, convolve_headwise = [], native.convolve_headwise

    def count(x, taps, *others):
        found.append(taps.size(2))
        return convolve_headwise(x, taps, *others)

    monkeypatch.setattr(native, "convolve_headwise", count)
    return found


@needs_kernels
@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
@pytest.mark.parametrize("heads, head_dim", [(3, 16), (5, 32), (2, 64), (3, 128), (1, 192)])
def test_native_heads_and_static_kernel_in_one_pass(monkeypatch, passes, heads, head_dim, dtype):
    """Heads of a part of a panel of channels, of the whole one and of several."""
    monkeypatch.setitem(globals(), "HEADS", heads)
    for time, taps in itertools.product((1, 2, 65), (1, 3, 4, 9)):
        tensors = inputs("headwise", time, taps, heads * head_dim, dtype)
        compare("headwise", tensors, "native", TOLERANCES[dtype], causal=True)
    assert passes == [heads] * 12


@needs_kernels
@pytest.mark.parametrize("impl", [None, "native"])
def test_a_static_kernel_in_one_pass(passes, impl):
    x, static = inputs("static", 7, 4, dtype=torch.float32)
    short_conv(x, None, static, causal=True, impl=impl)
    assert passes == [0]


@needs_kernels
@pytest.mark.parametrize("kind", ["static", "headwise", "low_rank"])
def test_one_native_gradient_at_a_time(kind):
    tensors = inputs(kind, 70, 4, 64, torch.float32)
    grad = torch.randn_like(tensors[0])
    run = partial(convolve, kind, causal=True, impl="native")
    _, *expected = with_gradients(run, tensors, grad)
    for n, wanted in enumerate(expected):
        leaves = [t.detach().requires_grad_(m == n) for m, t in enumerate(tensors)]
        (alone,) = torch.autograd.grad(run(*leaves), leaves[n], grad)
        assert torch.equal(alone, wanted)


@needs_kernels
@pytest.mark.parametrize("time, batch", [(1, 1), (1, 3), (70, 1), (70, 2)])
@pytest.mark.parametrize("of", ["all", "time", "batch"])
def test_a_single_rank_that_repeats(of, time, batch):
    torch.manual_seed(1)
    z = torch.randn({"time": (time, 1, 1), "batch": (1, batch, 1)}.get(of, (1, 1, 1)))
    x, up = torch.randn(time, batch, 70), torch.randn(1, 9, 70)
    grad = torch.randn(time, batch, 70)
    for repeats in (z.expand(time, batch, 1), z.expand(time, batch, 1).detach().requires_grad_()):
        results = []
        for impl in ("native", "reference"):
            leaves = [t.clone().requires_grad_() for t in (x, up)]
            leaves += [repeats] * repeats.requires_grad
            inputs = (leaves[0], repeats, leaves[1])
            y = low_rank_short_conv(*inputs, causal=True, impl=impl)
            results.append((y.detach(), *torch.autograd.grad(y, leaves, grad)))
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("residual", [True, False])
def test_no_ranks(impl, residual):
    x, grad = torch.randn(70, 2, 8), torch.randn(70, 2, 8)
    factors = [torch.ones(70, 2, 0), torch.ones(0, 4, 8)]
    convolve = partial(low_rank_short_conv, causal=True, residual=residual, impl=impl)
    y, grad_x, *others = with_gradients(convolve, [x, *factors], grad)
    assert torch.equal(y, x * residual) and torch.equal(grad_x, grad * residual)
    assert [t.shape for t in others] == [t.shape for t in factors]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_sentences(monkeypatch, kind, impl):
    monkeypatch.setitem(globals(), "BATCH", 0)
    tensors = inputs(kind, 5, 4, dtype=torch.float32)
    function = partial(convolve, kind, causal=True, impl=impl)
    y, *gradients = with_gradients(function, tensors, torch.zeros(5, 0, 6))
    assert y.shape == (5, 0, 6) and not any(x.abs().sum() for x in gradients)


@needs_kernels
@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_a_bit(kind, dtype):
    tensors = inputs(kind, 70, 4, 1024 if kind == "headwise" else 1100, dtype)
    function = partial(convolve, kind, causal=True, impl="native")
    assert_equal(*with_threads((1, 3), lambda: with_gradients(function, tensors, tensors[0])))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": (0, 2, 6)}, "time >= 1"),
        ({"z": (4, 2, 3), "x": (5, 2, 6)}, "z must be"),
        ({"up": (2, 3, 6)}, "up must be"),
        ({"up": (3, 0, 6)}, "up must be .* for z .4, 2, 3., not .3, 0, 6."),
        ({"up": (3, 4, 6)}, "static taps must be"),
        ({"static": (3, 6)}, "static taps must be"),
        ({"static": (6, 3, 1)}, "static taps must be"),
        ({"tail": (2, 1, 6)}, "must have the batch"),
        ({"tail": (2, 2, 6), "causal": False}, "only a causal"),
        ({"impl": "cuda"}, "unknown impl 'cuda'"),
        ({"z": torch.zeros(4, 2, 3).long()}, "z must be of floating point"),
        ({"up": torch.zeros(3, 3, 6).cfloat()}, "up must be of floating point"),
    ],
)
def test_says_what_is_wrong(change, message):
    shapes = {"x": (4, 2, 6), "z": (4, 2, 3), "up": (3, 3, 6), "static": (6, 3), **change}
    given = {n: torch.zeros(v) if isinstance(v, tuple) else v for n, v in shapes.items()}
    with pytest.raises(ValueError, match=message):
        low_rank_short_conv(**{"causal": True, **given})


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"static": torch.zeros(5, 3)},
            "static taps must be .channels, W >= 1. = .6, W., not .5, 3.",
        ),
        ({"static": torch.zeros(6, 0)}, "W >= 1"),
        ({"x": torch.zeros(4, 6)}, "x must be"),
        ({"x": torch.zeros(4, 2, 6).long()}, "x must be of floating point"),
        ({"static": torch.zeros(6, 3).long()}, "static taps must be of floating point"),
        ({"tail": Past.none(2, torch.zeros(6))}, "tail must be a tensor, not Past"),
    ],
)
def test_says_what_is_wrong_with_static_kernels(change, message):
    given = {"x": torch.zeros(4, 2, 6), "static": torch.zeros(6, 3), **change}
    with pytest.raises(ValueError, match=message):
        short_conv(**given, causal=True)


def test_headwise_alone_is_the_dynamic_convolution():
    tensors = inputs("taps", 9, 4)
    for causal in (True, False):
        expected = formula("taps", *tensors, causal=causal, residual=False)
        torch.testing.assert_close(dynamic_conv(*tensors, causal=causal), expected)
        y = convolve("taps", *tensors, causal=causal, residual=False)
        torch.testing.assert_close(y, expected)


def test_says_what_is_wrong_with_taps():
    x, taps = inputs("taps", 9, 4)
    with pytest.raises(ValueError, match="give taps"):
        short_conv(x, causal=True)
    with pytest.raises(ValueError, match="equally many"):
        short_conv(x, taps, torch.zeros(6, 3, dtype=x.dtype), causal=True)


def test_static_kernels_are_one_convolution_where_operators_cannot_be_used():
    x, static = torch.randn(9, 2, 6), torch.randn(6, 17)
    exported = torch.export.export(Static(), (x, static))
    assert "aten.conv1d" in str(exported.graph)
    torch.testing.assert_close(exported.module()(x, static), Static()(x, static))


class Static(torch.nn.Module):
    def forward(self, x, static):
        return short_conv(x, None, static, causal=True)
