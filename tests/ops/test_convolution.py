"""Both convolutions against the formula in float64, written out in loops or as one product."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

from fairseq_convattn.ops import dynamic_conv, lightweight_conv
from fairseq_convattn.ops.convolution import native

CONVOLUTIONS = {"lightweight": lightweight_conv, "dynamic": dynamic_conv}
NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(
        not native.is_built(), reason="the kernels were not compiled: no C compiler at installation"
    ),
)
IMPLEMENTATIONS = ["reference", "banded"]
WITH_NATIVE = [*IMPLEMENTATIONS, NATIVE]
KERNEL_SIZES = [1, 2, 4, 31]
HEADS, CHANNELS, BATCH = 3, 6, 2
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 6e-3,
    torch.bfloat16: 5e-2,
}
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced": lambda x: torch.cat([x, x], dim=-1)[..., 1 : x.size(-1) + 1],
    "spread": lambda x: torch.stack([x, x], dim=-1)[..., 0],
}
AXES = (
    (1, 2, 5, 63, 64, 65, 257, 400),  # positions
    (1, 3, 4, 7, 31, 33),  # taps
    (1, 3, 16, 64, 80),  # channels of a head
    (False, True),  # causal
    LAYOUTS,
    TOLERANCES,
)


def lengths(kernel_size):
    return sorted({1, 2, max(1, kernel_size - 1), kernel_size, kernel_size + 1, 63})


def most_precise(impl):
    """The dtype that it computes in."""
    return torch.float32 if impl == "native" else torch.float64


def direct(x, taps, bias, causal):
    """The paper's formula, entry by entry."""
    time, batch, channels = x.shape
    heads, kernel_size = taps.shape[-2:]
    left = kernel_size - 1 if causal else kernel_size // 2
    y = torch.zeros(time, batch, channels, dtype=torch.float64)
    for i in range(time):
        for c in range(channels):
            h = c // (channels // heads)
            for k in range(kernel_size):
                if 0 <= i + k - left < time:
                    weight = taps[h, k] if taps.dim() == 2 else taps[i, :, h, k]
                    y[i, :, c] += weight * x[i + k - left, :, c]
    return y if bias is None else y + bias


def inputs(name, time, kernel_size, dtype=torch.float64, batch=BATCH, channels=CHANNELS):
    torch.manual_seed(time * 100 + kernel_size)
    shape = (time, batch, HEADS, kernel_size) if name == "dynamic" else (HEADS, kernel_size)
    x = torch.randn(time, batch, channels, dtype=dtype)
    return x, torch.randn(shape, dtype=dtype), torch.randn(channels, dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("kernel_size", KERNEL_SIZES)
def test_is_the_papers_sum(name, kernel_size, causal):
    for time, with_bias in zip(lengths(kernel_size), itertools.cycle((True, False))):  # noqa: B905
        x, taps, bias = inputs(name, time, kernel_size)
        b = bias if with_bias else None
        expected = direct(x, taps, b, causal)
        for impl in IMPLEMENTATIONS:
            y = CONVOLUTIONS[name](x, taps, b, causal=causal, impl=impl)
            torch.testing.assert_close(y, expected, msg=f"time {time}")


def formula(x, taps, bias, causal, softmax, dropout_p):
    """The paper's formula, softmax and DropConnect inside, for large tensors."""
    kept = torch.empty_like(taps, dtype=torch.bool).bernoulli_(1 - dropout_p)
    w = (taps.softmax(-1) if softmax else taps) * kept / (1 - dropout_p)
    heads, kernel_size = w.shape[-2:]
    left = kernel_size - 1 if causal else kernel_size // 2
    padded = F.pad(x, (0, 0, 0, 0, left, kernel_size - 1 - left))
    windows = padded.unfold(0, kernel_size, 1).unflatten(2, (heads, -1))
    return (windows @ w.unsqueeze(-1)).flatten(2) + bias


def with_gradients(function, x, taps, bias, grad, **options):
    tensors = [t.detach().requires_grad_() for t in (x, taps, bias)]
    torch.manual_seed(0)  # of dropout
    y = function(*tensors, **options)
    return y.detach(), *torch.autograd.grad(y, tensors, grad.to(y.dtype))


def cases(step):
    """Every so many combinations, with softmax and DropConnect or without as chance has it."""
    generator = random.Random(1)
    for case in itertools.islice(itertools.product(*AXES), 0, None, step):
        yield *case, generator.random() < 0.5, generator.choice((0.0, 0.4))


@pytest.mark.parametrize("step", [53, pytest.param(1, marks=pytest.mark.slow)])  # 53: all pairs
@pytest.mark.parametrize("impl", WITH_NATIVE)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_is_the_formula(name, impl, step):
    for case in cases(step):
        time, kernel_size, head_dim, causal, layout, dtype, softmax, dropout_p = case
        if impl == "native" and dtype not in native.DTYPES:
            dtype = {torch.float64: torch.float32, torch.float16: torch.bfloat16}[dtype]
        x, taps, bias = inputs(name, time, kernel_size, dtype, channels=HEADS * head_dim)
        x, taps, grad = (LAYOUTS[layout](t) for t in (x, taps, torch.randn_like(x)))
        options = {"causal": causal, "softmax": softmax, "dropout_p": dropout_p}
        given = (x, taps, bias, grad)
        actual = with_gradients(CONVOLUTIONS[name], *given, impl=impl, **options)
        expected = with_gradients(formula, *(t.double() for t in given), **options)
        for a, e, like in zip(actual, expected, (x, x, taps, bias), strict=True):
            assert a.dtype == dtype and a.shape == like.shape, case
            error = (a.double() - e).abs().max() / max(1, e.abs().max())
            assert error <= TOLERANCES[dtype], (case, error)


@pytest.mark.parametrize("impl", WITH_NATIVE)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_no_sentences(name, impl):
    x, taps, bias = inputs(name, 5, 3, most_precise(impl), batch=0)
    y, *grads = with_gradients(CONVOLUTIONS[name], x, taps, bias, x, causal=True, impl=impl)
    assert y.shape == x.shape and not any(grad.count_nonzero() for grad in grads)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_what_is_not_finite_stays_in_its_sentence(name, impl):
    x, taps, bias = inputs(name, 100, 31, batch=3)
    grad = torch.randn_like(x)
    x[40, 1, 3] = grad[50, 1, 4] = float("nan")
    if name == "dynamic":
        taps[45, 1, 0, 0] = float("nan")
    given = (x, taps, bias, grad)
    y, *grads, _ = with_gradients(CONVOLUTIONS[name], *given, causal=True, impl=impl)
    if name == "lightweight":
        grads.pop()  # of kernels that all sentences share
    for tensor in (y, *grads):
        assert tensor[:, 1].isnan().any() and tensor[:, ::2].isfinite().all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("time, kernel_size", [(1, 3), (4, 5), (35, 2)])
def test_gradients(name, time, kernel_size, causal, impl):
    tensors = [t.requires_grad_() for t in inputs(name, time, kernel_size, batch=1)]
    tail = torch.randn(2, 1, CHANNELS, dtype=torch.float64, requires_grad=True)

    def function(x, taps, bias, tail):
        if not causal:
            return CONVOLUTIONS[name](x, taps, bias, causal=False, impl=impl)
        return CONVOLUTIONS[name](x, taps, bias, causal=True, tail=tail, impl=impl)

    assert torch.autograd.gradcheck(function, (*tensors, tail), fast_mode=time > 10)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_half_precision_keeps_its_dtype_and_accumulates_in_float32(name, dtype, impl):
    x, taps, _ = inputs(name, 50, 31)
    x, taps = x.to(dtype), taps.to(dtype)
    y = CONVOLUTIONS[name](x, taps, causal=True, impl=impl)
    assert y.dtype == dtype
    mixed = CONVOLUTIONS[name](x, taps.float(), torch.zeros(CHANNELS), causal=True, impl=impl)
    assert mixed.dtype == dtype  # as autocast mixes them
    expected = direct(x.double(), taps.double(), None, causal=True)
    rounding = torch.finfo(dtype).eps * expected.abs().amax()
    assert (y.double() - expected).abs().max() <= rounding


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_half_precision_are_summed_in_float32(name, dtype, impl):
    x, taps, bias = inputs(name, 300, 63, dtype)
    given, options = (x, taps, bias, torch.randn_like(x)), {"causal": True, "softmax": False}
    _, actual, *_ = with_gradients(CONVOLUTIONS[name], *given, impl=impl, **options)
    wide = (t.double() for t in given)
    _, expected, *_ = with_gradients(formula, *wide, dropout_p=0.0, **options)
    rounding = torch.finfo(dtype).eps * expected.abs().amax()
    assert (actual.double() - expected).abs().max() <= rounding


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_autocast(name, dtype, impl):
    x, taps, _ = inputs(name, 40, 9, torch.float32)
    linear = torch.nn.Linear(CHANNELS, CHANNELS)
    results = []
    for enabled in (False, True):
        weights = taps.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=enabled):
            y = CONVOLUTIONS[name](linear(x), weights, causal=True, softmax=True, impl=impl)
        assert y.dtype == (dtype if enabled else torch.float32)
        wanted = (weights, linear.weight, linear.bias)
        results.append((y, *torch.autograd.grad(y.float().square().sum(), wanted)))
    for expected, actual in zip(*results, strict=True):
        error = (actual - expected).abs().max() / max(1, expected.abs().max())
        assert error <= TOLERANCES[dtype]


@pytest.mark.parametrize("impl", WITH_NATIVE)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("kernel_size", KERNEL_SIZES)
@pytest.mark.parametrize("chunk", [1, 5, 40])  # also shorter than what the kernel remembers
def test_chunks_from_a_tail_are_the_whole(name, kernel_size, chunk, impl):
    x, taps, bias = inputs(name, 45, kernel_size, most_precise(impl))
    whole = CONVOLUTIONS[name](x, taps, bias, causal=True, impl=impl)
    tail, pieces = x[:0], []
    for start in range(0, x.size(0), chunk):
        steps = slice(start, start + chunk)
        piece = taps if taps.dim() == 2 else taps[steps]
        y, tail = CONVOLUTIONS[name](x[steps], piece, bias, causal=True, tail=tail, impl=impl)
        assert tail.size(0) == min(kernel_size - 1, start + y.size(0))
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces), whole)


def test_a_longer_tail_than_needed_changes_nothing():
    x, taps, _ = inputs("lightweight", 12, 3)
    y, tail = lightweight_conv(x[8:], taps, causal=True, tail=x[:8])
    torch.testing.assert_close(y, lightweight_conv(x, taps, causal=True)[8:])
    torch.testing.assert_close(tail, x[-2:])


def test_memory_grows_linearly_with_time():
    """No time x time matrix: at 100,000 positions one would take 40 GB."""
    x, taps, _ = inputs("lightweight", 100_000, 31, torch.float32, batch=1, channels=HEADS)
    assert lightweight_conv(x, taps, causal=True).shape == x.shape


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x, w: lightweight_conv(x, w[None], causal=True), "taps must be"),
        (lambda x, w: dynamic_conv(x, w, causal=True), "taps must be"),
        (lambda x, w: lightweight_conv(x[..., :5], w, causal=True), "3 heads do not divide 5"),
        (lambda x, w: lightweight_conv(x[:0], w, causal=True), "time >= 1"),
        (lambda x, w: lightweight_conv(x, w[:, :0], causal=True), "at least one tap"),
        (lambda x, w: lightweight_conv(x, w, causal=False, tail=x), "only a causal"),
        (lambda x, w: lightweight_conv(x, w, causal=True, tail=x[:, :1]), "agree in batch"),
        (lambda x, w: lightweight_conv(x, w, causal=True, impl="cuda"), "unknown impl 'cuda'"),
    ],
)
def test_says_what_is_wrong(call, message):
    x, taps, _ = inputs("lightweight", 4, 3)
    with pytest.raises(ValueError, match=message):
        call(x, taps)
