"""Both convolutions against the formula in float64, written out in loops."""

import itertools

import kernel_cases
import pytest
import torch

from fairseq_convattn.ops import dynamic_conv, lightweight_conv

CONVOLUTIONS = {"lightweight": lightweight_conv, "dynamic": dynamic_conv}
IMPLEMENTATIONS = ["reference", "tiled"]
HEADS, CHANNELS, BATCH = 3, 6, 2


def lengths(kernel_size):
    return sorted({1, 2, max(1, kernel_size - 1), kernel_size, kernel_size + 1, 63})


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
@pytest.mark.parametrize("kernel_size", [1, 2, 4, 31])
def test_is_the_papers_sum(name, kernel_size, causal):
    for time, with_bias in zip(lengths(kernel_size), itertools.cycle((True, False))):  # noqa: B905
        x, taps, bias = inputs(name, time, kernel_size)
        b = bias if with_bias else None
        expected = direct(x, taps, b, causal)
        for impl in IMPLEMENTATIONS:
            y = CONVOLUTIONS[name](x, taps, b, causal=causal, impl=impl)
            torch.testing.assert_close(y, expected, msg=f"time {time}")


def with_gradients(name, x, taps, bias, grad, **options):
    function, options = CONVOLUTIONS[name], {"causal": True, **options}
    return kernel_cases.with_gradients(function, (x, taps, bias), grad, **options)


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
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_autocast_changes_nothing(name, impl):
    x, taps, _ = inputs(name, 50, 31, torch.float32)
    shape = CONVOLUTIONS[name](x.to("meta"), taps.to("meta"), causal=True, impl=impl).shape
    assert shape == x.shape  # a device without autocast
    with torch.autocast("cpu", torch.bfloat16):
        y = CONVOLUTIONS[name](x, taps, causal=True, impl=impl)
    assert torch.equal(y, CONVOLUTIONS[name](x, taps, causal=True, impl=impl))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_half_precision_are_summed_in_float32(name, dtype, impl):
    x, taps, bias = inputs(name, 300, 63, dtype)
    given = (x, taps, bias, torch.randn_like(x))
    _, actual, *_ = with_gradients(name, *given, impl=impl)
    _, expected, *_ = with_gradients(name, *(t.double() for t in given), impl="reference")
    rounding = torch.finfo(dtype).eps * expected.abs().amax()
    assert (actual.double() - expected).abs().max() <= rounding


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
        (lambda x, w: lightweight_conv(x, w.long(), causal=True), "taps must be of floating"),
        (lambda x, w: lightweight_conv(x, w, x[0, 0].long(), causal=True), "bias must be of float"),
        (lambda x, w: lightweight_conv(x, w, causal=True, tail=x.long()), "tail must be of float"),
        (lambda x, w: lightweight_conv(x, w[:, :0], causal=True), "at least one tap"),
        (lambda x, w: lightweight_conv(x, w, causal=False, tail=x), "only a causal"),
        (lambda x, w: lightweight_conv(x, w, x[0], causal=True), r"bias must be \[channels\]"),
        (lambda x, w: lightweight_conv(x, w, causal=True, tail=x[:, :1]), "must have the batch"),
        (lambda x, w: lightweight_conv(x, w, causal=True, tail=[x]), "not list"),
        (lambda x, w: lightweight_conv(x, w, causal=True, impl="cuda"), "unknown impl 'cuda'"),
    ],
)
def test_says_what_is_wrong(call, message):
    x, taps, _ = inputs("lightweight", 4, 3)
    with pytest.raises(ValueError, match=message):
        call(x, taps)
