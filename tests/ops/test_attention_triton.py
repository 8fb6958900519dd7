"""The Triton kernels of composite attention, in Triton's interpreter or on a GPU."""

import importlib.util
import os
import sys

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton: pip install triton", allow_module_level=True)
ON_GPU = torch.cuda.is_available()
if not ON_GPU:  # Triton reads it when it is imported
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton is imported already, without its interpreter", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"

from fairseq_convattn.ops import composite_attention  # noqa: E402
from fairseq_convattn.ops.attention import BEYOND  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"
HEADS, WIDTH, SPAN = 2, 8, 3
TERMS = [
    ("content",),
    ("content", "fixed"),
    ("content", "tisa"),
    ("query",),
    ("key", "key_only"),
    ("content", "fixed", "query", "key", "t5", "alibi", "kerple"),
]


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE, dtype=dtype, requires_grad=True)


def parameters(terms, causal, heads):
    taps = SPAN + 1 if causal else 2 * SPAN + 1
    made = {
        "content": lambda: None,
        "fixed": lambda: random(heads, taps),
        "query": lambda: random(heads, taps, WIDTH),
        "key": lambda: random(heads, taps, WIDTH),
        "key_only": lambda: random(heads, WIDTH),
        "tisa": lambda: tuple(random(heads, 3) for _ in range(3)),
        "alibi": lambda: random(heads),
        "t5": lambda: random(heads, 32),
        "kerple": lambda: (random(heads), random(heads)),
    }
    return {term: made[term]() for term in terms}


def tensors(terms):
    for term in terms.values():
        if term is not None:
            yield from term if isinstance(term, tuple) else (term,)


def run(qkv, terms, beyond="clip", impl="triton", **options):
    """Output, then the gradients of inputs and tables."""
    span = SPAN if beyond == "mask" else None
    y = composite_attention(*qkv, terms, beyond=beyond, span=span, impl=impl, **options)
    weights = torch.linspace(-1, 1, y.numel(), device=DEVICE).view_as(y).to(y.dtype)
    wanted = [*qkv, *tensors(terms)]
    return y, *torch.autograd.grad(y, wanted, weights, materialize_grads=True)


def compare(qkv, terms, beyond, atol=1e-4, **options):
    expected = run(qkv, terms, beyond, "reference", **options)
    for e, actual in zip(expected, run(qkv, terms, beyond, **options), strict=True):
        torch.testing.assert_close(actual, e, rtol=0, atol=atol)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("terms", TERMS, ids=",".join)
def test_kernels_give_what_the_reference_gives(terms, causal):
    torch.manual_seed(1)
    for beyond in BEYOND:
        for queries, keys in ((21, 21), (5, 21), (1, 1)):
            qkv = [random(3, HEADS, time, WIDTH) for time in (queries, keys, keys)]
            mask = torch.zeros(3, keys, dtype=torch.bool, device=DEVICE)
            mask[0, : keys // 3], mask[1, keys - keys // 3 :], mask[2] = True, True, True
            made = parameters(terms, causal, heads=1 if queries == 5 else HEADS)
            compare(qkv, made, beyond, causal=causal, padding_mask=mask)


@pytest.mark.parametrize("width", [1, 17, 40])
def test_widths_and_strides(width):
    torch.manual_seed(2)
    q, k = (random(2, 33, HEADS, WIDTH).transpose(1, 2) for _ in range(2))
    v = random(2, 33, HEADS, width).transpose(1, 2)
    compare([q, k, v], parameters(("content", "fixed", "query"), True, HEADS), "clip", causal=True)


def test_padding_gives_zeros_where_nothing_is_seen():
    qkv = [random(2, HEADS, 20, WIDTH) for _ in range(3)]
    mask = torch.zeros(2, 20, dtype=torch.bool, device=DEVICE)
    mask[0, :4], mask[1] = True, True
    y, *grads = run(
        qkv, parameters(("content", "tisa"), True, HEADS), causal=True, padding_mask=mask
    )
    assert y[1].eq(0).all() and y[0, :, :4].eq(0).all() and y[0, :, 4:].ne(0).all()
    assert all(grad.isfinite().all() for grad in grads)


def test_the_same_inputs_give_the_same_bits():
    qkv = [random(2, HEADS, 50, WIDTH) for _ in range(3)]
    terms = parameters(("content", "fixed", "query", "key"), False, HEADS)
    first, second = (run(qkv, terms, causal=False) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_dropout_drops_the_same_weights_forward_and_backward():
    """The output is linear in v: its gradient is the transposed use of the same weights."""
    qkv = [random(2, HEADS, 40, WIDTH) for _ in range(3)]
    terms = parameters(("content", "fixed"), True, HEADS)
    torch.manual_seed(3)
    y, _, _, grad, *_ = run(qkv, terms, causal=True, dropout_p=0.4)
    weights = torch.linspace(-1, 1, y.numel(), device=DEVICE).view_as(y)
    torch.testing.assert_close((grad * qkv[2]).sum(), (weights * y).sum(), rtol=1e-4, atol=1e-3)
    assert not torch.allclose(y, run(qkv, terms, causal=True)[0])


BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(not ON_GPU, reason="Triton's interpreter multiplies bfloat16 wrongly"),
)


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT16])
def test_half_precision(dtype):
    torch.manual_seed(4)
    qkv = [random(1, HEADS, 40, WIDTH, dtype=dtype) for _ in range(3)]
    terms = parameters(("content", "tisa", "query"), True, HEADS)
    y = run(qkv, terms, causal=True)[0]
    expected = run([x.detach().float().requires_grad_() for x in qkv], terms, causal=True)[0]
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), expected, rtol=0, atol=0.05)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("time", [512, 1000, 2048])
def test_long_inputs_on_a_gpu(time):
    torch.manual_seed(5)
    qkv = [random(2, 4, time, 64) for _ in range(3)]
    terms = {"content": None, "fixed": random(4, 17), "query": random(1, 17, 64)}
    compare(qkv, terms, "clip", atol=2e-2, causal=False)


def test_refuses_double_precision():
    qkv = [random(1, HEADS, 4, WIDTH, dtype=torch.float64) for _ in range(3)]
    with pytest.raises(ValueError, match="float32"):
        composite_attention(*qkv, {"content": None}, causal=True, impl="triton")
