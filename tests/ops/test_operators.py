"""What holds for every operation with kernels of its own."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_convattn.ops import composite_attention, dynamic_conv, low_rank_short_conv
from fairseq_convattn.ops.native import is_built

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not is_built(), reason="needs a GPU or the compiled kernels"
)


def convolution(x, other):
    return dynamic_conv(x, other, causal=True, softmax=True)


def attention(x, other):
    q, k = (t.permute(1, 2, 0, 3) for t in (x.unflatten(-1, (2, -1)), other))
    y = composite_attention(q, k, k, {"content": None}, causal=True)
    return y.permute(2, 0, 1, 3).flatten(2)


def short_convolution(x, other):
    up = torch.linspace(-1, 1, 4 * 3 * x.size(2), device=x.device).view(4, 3, -1)
    return low_rank_short_conv(x, other.flatten(2)[..., :4], up, None, causal=True)


@pytest.fixture(params=[convolution, attention, short_convolution], ids=lambda f: f.__name__)
def operation(request):
    return request.param


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    return torch.randn(9, 2, 16, device=DEVICE), torch.randn(9, 2, 2, 8, device=DEVICE)


class Seen(TorchDispatchMode):
    """Notes the package's operators that PyTorch dispatches."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "convattn":
            self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def gradients(operation, inputs, wanted):
    inputs = [x.clone().requires_grad_(want) for x, want in zip(inputs, wanted, strict=True)]
    y = operation(*inputs)
    y.square().sum().backward()
    return [y.detach(), *(x.grad for x in inputs)]


def operators_in(call):
    """The package's operators that PyTorch records in a call."""
    with torch.profiler.profile() as profiler:
        call()
    return {event.key for event in profiler.key_averages() if event.key.startswith("convattn::")}


def test_plain_tensors_take_the_short_way(operation, inputs):
    x = inputs[0].requires_grad_()
    with torch.no_grad():
        assert not operators_in(lambda: operation(*inputs))
    found = operators_in(lambda: operation(x, inputs[1]).sum().backward())
    assert not any(name.endswith("_backward") for name in found)
    assert operators_in(lambda: torch.compile(operation, backend="eager", fullgraph=True)(*inputs))


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_the_short_way_gives_what_pytorchs_operator_gives(operation, inputs, wanted):
    found = gradients(operation, inputs, wanted)
    with Seen() as seen:
        expected = gradients(operation, inputs, wanted)
    assert len(seen.names) == 2, "a mode sees the operator and its derivative"
    for ours, theirs, want in zip(found, expected, (True, *wanted), strict=True):
        assert (ours is not None) == want
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(operation(*inputs), found[0])


def test_a_mode_in_the_backward_pass_sees_the_derivative(operation, inputs):
    y = operation(inputs[0].requires_grad_(), inputs[1])
    with Seen() as seen:
        y.sum().backward()
    assert len(seen.names) == 1


def test_negated_tensors_are_what_they_seem(operation, inputs):
    """PyTorch negates lazily: memory has other signs than the tensor."""
    x, other = inputs
    negated = torch._neg_view(-x)
    assert negated.is_neg() and torch.equal(negated, x)
    assert torch.equal(operation(negated, other), operation(x, other))
    (expected,) = torch.autograd.grad(operation(x.requires_grad_(), other), x, other.flatten(2))
    grad = torch._neg_view(-other.flatten(2))
    (found,) = torch.autograd.grad(operation(x, other), x, grad)
    assert torch.equal(found, expected)


def test_second_derivatives_are_refused(operation, inputs):
    x = inputs[0].requires_grad_()
    (grad,) = torch.autograd.grad(operation(x, inputs[1]).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.sum().backward()


def test_many_gradients_at_once(operation, inputs):
    """As ``torch.autograd.functional.jacobian(vectorize=True)`` asks for them."""
    given = [x.requires_grad_() for x in inputs]
    y = operation(*given)
    grads = torch.randn(3, *y.shape, device=DEVICE)
    found = torch.autograd.grad(y, given, grads, is_grads_batched=True, retain_graph=True)
    expected = zip(*(torch.autograd.grad(y, given, g, retain_graph=True) for g in grads))  # noqa: B905
    for ours, each in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torch.stack(each), rtol=0, atol=0)


def test_compiled_functions_may_transform(operation, inputs):
    x, other = inputs

    def gradient(x):
        return torch.func.grad(lambda x: operation(x, other).square().sum())(x)

    compiled = torch.compile(gradient, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), gradient(x))


def test_subclasses_of_tensors_see_the_operator(operation, inputs):
    class Tagged(torch.Tensor):
        called = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.called.append(str(function))
            return super().__torch_function__(function, types, args, kwargs)

    y = operation(inputs[0].as_subclass(Tagged), inputs[1])
    assert any("convattn" in name for name in Tagged.called)
    assert torch.equal(y.as_subclass(torch.Tensor), operation(*inputs))


def test_numbers_of_numpy_are_numbers(inputs):
    x, taps = inputs
    found = dynamic_conv(x, taps, causal=True, softmax=np.bool_(True))
    assert torch.equal(found, convolution(x, taps))
