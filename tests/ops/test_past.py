"""What a convolution remembers while hypotheses are reordered: the same as copied tails."""

import pytest
import torch
from kernel_cases import NATIVE, needs_kernels
from torch.testing import assert_close

from fairseq_convattn.ops import Past, dynamic_conv, lightweight_conv
from fairseq_convattn.ops.convolution.past import Ring, step

HEADS, CHANNELS = 2, 6
ORDERS = [[0, 1, 2], [2, 2, 0], [0, 0], [1, 0, 1, 1, 0], [4, 3]]  # swapped, fewer, more
PIECES = [1, 1, 3, 1, 40, 1, 1, 2, 1, 1]


@pytest.fixture(params=["reference", "tiled", NATIVE])
def impl(request):
    return request.param


def taps_for(convolution, time, batch, kernel_size):
    shape = (HEADS, kernel_size)
    return torch.randn(shape if convolution is lightweight_conv else (time, batch, *shape))


def test_the_result_has_the_dtype_of_x_whatever_came_before():
    x, taps = torch.randn(2, 3, CHANNELS, dtype=torch.bfloat16), torch.randn(HEADS, 3).bfloat16()
    before = torch.randn(2, 3, CHANNELS)
    for tail in (before, Past.none(3, before)):
        y, _ = lightweight_conv(x, taps, causal=True, tail=tail)
        assert y.dtype == torch.bfloat16


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("convolution", [lightweight_conv, dynamic_conv])
@pytest.mark.parametrize("kernel_size", [1, 2, 7, 31])
def test_continues_as_a_tail_does(impl, convolution, kernel_size, dtype):
    torch.manual_seed(kernel_size)
    batch, orders = 3, iter(ORDERS)
    like = torch.empty(0, batch, CHANNELS, dtype=dtype)
    tail, past = like, Past.none(batch, like)
    options = {"causal": True, "softmax": True, "impl": impl}
    for i, time in enumerate(PIECES):
        x = torch.randn(time, batch, CHANNELS, dtype=dtype)
        taps = taps_for(convolution, time, batch, kernel_size)
        expected, tail = convolution(x, taps, tail=tail, **options)
        actual, past = convolution(x, taps, tail=past, **options)
        assert_close(actual, expected)
        if i % 2:
            order = torch.tensor(next(orders))
            batch, tail, past = len(order), tail[:, order], past.reorder(order)


@torch.no_grad()
def test_transformations_of_torch_func_continue_as_from_a_tail():
    x, taps = torch.randn(6, 3, CHANNELS), torch.randn(HEADS, 5)
    _, past = lightweight_conv(x[:3], taps, causal=True, tail=Past.none(3, x))

    def continued(tail):
        return lambda x: lightweight_conv(x, taps, causal=True, tail=tail)[0]

    ours, theirs = continued(past), continued(x[:3])
    stacked = torch.stack([x[3:5], x[4:6]])
    assert_close(torch.vmap(ours)(stacked), torch.vmap(theirs)(stacked))
    assert_close(
        torch.func.jvp(ours, (x[3:],), (x[3:],)), torch.func.jvp(theirs, (x[3:],), (x[3:],))
    )
    assert_close(ours(x[3:]), theirs(x[3:]))


@torch.no_grad()
@pytest.mark.parametrize("convolution", [lightweight_conv, dynamic_conv])
@pytest.mark.parametrize("softmax", [True, False])
def test_a_step_is_the_last_output(convolution, softmax):
    torch.manual_seed(5)
    x = torch.randn(9, 3, CHANNELS)
    for kernel_size in (1, 4, 9, 12):
        taps = taps_for(convolution, 9, 3, kernel_size)
        expected = convolution(x, taps, causal=True, softmax=softmax, impl="reference")[-1:]
        own = taps if taps.dim() == 2 else taps[-1:]
        actual = step(x[-kernel_size:], own, softmax)
        assert_close(actual, expected)


@torch.no_grad()
@pytest.mark.parametrize("convolution", [lightweight_conv, dynamic_conv])
@pytest.mark.parametrize("kernel_size", [1, 2, 5])
def test_a_ring_continues_as_a_past_does_and_stays_in_its_place(impl, convolution, kernel_size):
    torch.manual_seed(kernel_size)
    options = {"causal": True, "softmax": True, "impl": impl}
    past = Past.none(3, torch.empty(0, 3, CHANNELS))
    for x in torch.randn(2, 1, 3, CHANNELS):
        _, past = convolution(x, taps_for(convolution, 1, 3, kernel_size), tail=past, **options)
    ring, wide = Ring.of(past, kernel_size, 4), [0, 1, 2, 0]  # room for four
    place = ring.rows.data_ptr()
    for order in ([0, 1, 2], [2, 2, 0], [1, 0, 1], *[[0, 2, 1]] * 9):
        past, ring = past.reorder(torch.tensor(order)), ring.reorder(torch.tensor([*order, 3]))
        x, taps = torch.randn(1, 3, CHANNELS), taps_for(convolution, 1, 3, kernel_size)
        expected, past = convolution(x, taps, tail=past, **options)
        taps = taps if taps.dim() == 2 else taps[:, wide]
        y, ring = convolution(x[:, wide], taps, tail=ring, **options)
        assert_close(y[:, :3], expected)
    assert ring.rows.data_ptr() == place
    assert_close(ring.past(3).inputs()[-kernel_size:], past.inputs())


@torch.no_grad()
def test_memory_does_not_grow(impl):
    past, sizes = Past.none(3, torch.empty(0, 3, CHANNELS)), []
    for _ in range(200):
        x, taps = torch.randn(1, 3, CHANNELS), torch.randn(HEADS, 7)
        _, past = lightweight_conv(x, taps, causal=True, tail=past, impl=impl)
        sizes.append(past.rows.numel() + past.index.numel())
    assert max(sizes) == max(sizes[:50])


def test_steps_write_into_the_same_memory():
    with torch.no_grad():
        past, places = Past.none(3, torch.empty(0, 3, CHANNELS)), set()
        for _ in range(10):
            x, taps = torch.randn(1, 3, CHANNELS), torch.randn(HEADS, 7)
            _, past = lightweight_conv(x, taps, causal=True, tail=past)
            past = past.reorder(torch.tensor([1, 2, 0]))
            places.add(past.rows.data_ptr())
    assert len(places) == 1


@torch.no_grad()
def test_two_continuations_of_one_past(impl):
    taps, start = torch.ones(1, 2), Past.none(1, torch.empty(0, 1, 1))
    options = {"causal": True, "impl": impl}
    _, past = lightweight_conv(torch.full((1, 1, 1), 1.0), taps, tail=start, **options)
    _, ten = lightweight_conv(torch.full((1, 1, 1), 10.0), taps, tail=past, **options)
    y, hundred = lightweight_conv(torch.full((1, 1, 1), 100.0), taps, tail=past, **options)
    assert y.item() == 101
    for branch, expected in ((ten, 10), (hundred, 100)):
        y, _ = lightweight_conv(torch.zeros(1, 1, 1), taps, tail=branch, **options)
        assert y.item() == expected


def test_goes_on_after_inference_mode():
    taps, x = torch.ones(1, 2), torch.ones(1, 1, 1)
    with torch.inference_mode():
        _, past = lightweight_conv(x, taps, causal=True, tail=Past.none(1, x))
    with torch.no_grad():
        y, _ = lightweight_conv(x, taps, causal=True, tail=past)
    assert y.item() == 2


def test_gradients_reach_the_past(impl):
    torch.manual_seed(1)
    x, taps = torch.randn(6, 2, CHANNELS), torch.randn(6, 2, HEADS, 3)
    results = []
    for start in (torch.empty(0, 2, CHANNELS), Past.none(2, x)):
        inputs, logits = x.clone().requires_grad_(), taps.clone().requires_grad_()
        tail, outputs = start, []
        for i in range(6):
            steps = slice(i, i + 1)
            y, tail = dynamic_conv(inputs[steps], logits[steps], causal=True, tail=tail, impl=impl)
            outputs.append(y)
        results.append(torch.autograd.grad(torch.cat(outputs).square().sum(), [inputs, logits]))
    for expected, actual in zip(*results, strict=True):
        assert_close(actual, expected)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("convolution", [lightweight_conv, dynamic_conv])
@needs_kernels
def test_operator_keeps_pytorchs_rules(convolution, dtype):
    x = torch.randn(5, 3, CHANNELS, dtype=dtype)
    past = Past.none(3, x).append(x, 2).reorder(torch.tensor([2, 0, 0, 1]))
    arguments = (past.rows, past.index, taps_for(convolution, 2, 4, 3), 2, -1)
    for softmax in (False, True):
        operator = torch.ops.convattn.convolve_past.default
        torch.library.opcheck(operator, (*arguments, softmax))


def test_other_sentences_are_refused():
    past = Past.none(3, torch.empty(0, 3, CHANNELS))
    with pytest.raises(ValueError, match="must have the batch"):
        lightweight_conv(torch.randn(1, 2, CHANNELS), torch.randn(2, 3), causal=True, tail=past)
