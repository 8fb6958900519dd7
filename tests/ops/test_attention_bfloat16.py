"""Attention of bfloat16 with products by AMX, beside the same inputs in float32 or float64."""

import itertools

import pytest
import torch
from attention_cases import converted, table_parameters, tensors
from kernel_cases import assert_equal, with_threads

from fairseq_convattn.ops import composite_attention
from fairseq_convattn.ops.attention import BEYOND, native_bfloat16
from fairseq_convattn.ops.native import has_amx

pytestmark = pytest.mark.skipif(not has_amx(), reason="needs compiled kernels and a CPU with AMX")

HEADS, SPAN = 2, 8
MANY = pytest.mark.slow
SUBSETS = (("content",), ("fixed", "tisa"), ("content", "query", "key", "key_only"))


def inputs(queries, keys, width=24, values=40, batch=3):
    shapes = ((queries, width), (keys, width), (keys, values))
    return [torch.randn(batch, HEADS, *shape).bfloat16().requires_grad_() for shape in shapes]


def paddings(keys):
    """None; at either end; and also in between, and all of a sentence."""
    ends = torch.zeros(3, keys, dtype=torch.bool)
    ends[0, : keys // 3], ends[1, keys - keys // 3 :] = True, True
    everywhere = ends.clone()
    everywhere[0, keys // 2 : keys // 2 + 1], everywhere[2] = True, True
    return None, ends, everywhere


def gradients(y, wanted):
    """The output, and its gradients with weights that bfloat16 has."""
    weights = torch.linspace(-1, 1, y.numel()).view_as(y).bfloat16().to(y.dtype)
    return y, *torch.autograd.grad(y, wanted, weights, materialize_grads=True)


def copied(terms):
    return converted(terms, lambda x: x.detach().requires_grad_())


def with_gradients(qkv, terms, impl, options):
    """Terms of random tables in float32, and dropout with the same seed."""
    torch.manual_seed(2)
    span = SPAN if options["beyond"] == "mask" else None
    terms = copied(terms)
    y = composite_attention(*qkv, terms, span=span, impl=impl, **options)
    return gradients(y, [*qkv, *tensors(terms)])


def assert_near(actual, expected, most=0.006):
    """Root mean square of the differences, and the largest of them, beside the largest element."""
    for a, e in zip(actual, expected, strict=True):
        difference, size = a.double() - e.double(), e.double().abs().max().clamp(min=1e-2)
        assert difference.abs().max() <= 2 * most * size
        assert difference.square().mean().sqrt() <= most * e.double().square().mean().sqrt() + 1e-5


def compare(qkv, terms, **options):
    wide = [x.detach().float().requires_grad_() for x in qkv]
    expected = with_gradients(wide, terms, "tiled", options)
    assert_near(with_gradients(qkv, terms, "native", options), expected)


@pytest.mark.parametrize(
    "queries, keys",
    [
        (1, 1),
        (70, 75),
        *(pytest.param(*x, marks=MANY) for x in ((1, 77), (31, 33), (129, 200), (300, 300))),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_float32(causal, queries, keys):
    torch.manual_seed(1)
    for beyond, padding_mask, terms in itertools.product(BEYOND, paddings(keys), SUBSETS):
        made = table_parameters(terms, lambda *s: torch.randn(HEADS, *s) / 3, causal, SPAN, 24)
        for p in (0.0, 0.3):
            options = {"causal": causal, "beyond": beyond, "padding_mask": padding_mask}
            compare(inputs(queries, keys), made, dropout_p=p, **options)


@pytest.mark.parametrize("width, values", [(1, 1), (16, 64), (65, 33)])
def test_heads_of_any_width(width, values):
    torch.manual_seed(2)
    options = {"causal": True, "beyond": "clip", "padding_mask": None}
    compare(inputs(40, 40, width, values), {"content": None}, **options)


@pytest.mark.parametrize("queries, keys", [(40, 5000), pytest.param(5000, 5000, marks=MANY)])
def test_many_keys(queries, keys):
    """Of which fewer queries exist at once."""
    torch.manual_seed(3)
    made = {"content": None, "fixed": torch.randn(1, SPAN + 1)}
    qkv = inputs(queries, keys, width=8, values=8, batch=1)
    compare(qkv, made, causal=True, beyond="clip")


def test_exact_where_bfloat16_is():
    """Equal scores of 64 keys, and small whole numbers: a key that is left out would be seen."""
    v = torch.randint(-4, 5, (2, 2, 64, 8)).bfloat16()
    q, k = torch.zeros_like(v), torch.randn(v.shape).bfloat16()
    y = composite_attention(q, k, v, {"content": None}, causal=False, impl="native")
    expected = v.float().mean(2, keepdim=True).bfloat16()
    torch.testing.assert_close(y, expected.expand_as(y), rtol=0, atol=0)


@pytest.mark.parametrize("queries, keys", [(70, 20), (9, 100)])
def test_more_queries_than_keys(queries, keys):
    torch.manual_seed(4)
    for padding_mask in paddings(keys):
        q, k, v = inputs(queries, keys)
        options = {"causal": False, "padding_mask": padding_mask, "dropout_p": 0.0}
        actual = gradients(native_bfloat16.attention(q, k, v, **options), (q, k, v))
        q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
        scores = q @ k.transpose(2, 3) * 24**-0.5
        seen = torch.ones(3, 1, 1, 1)
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None, None], -1e30)
            seen = ~padding_mask.all(1)[:, None, None, None]
        assert_near(actual, gradients(scores.softmax(-1) * seen @ v, (q, k, v)))


@pytest.mark.parametrize("causal, beyond", [(False, "clip"), (True, "mask")])
def test_any_number_of_threads(causal, beyond):
    torch.manual_seed(5)
    qkv = inputs(100, 100)
    terms = "fixed", *SUBSETS[2]
    made = table_parameters(terms, lambda *s: torch.randn(1, *s), causal, SPAN, 24)
    options = {"causal": causal, "beyond": beyond, "padding_mask": paddings(100)[1]}
    options["dropout_p"] = 0.2
    one, *others = with_threads((1, 2, 5), lambda: with_gradients(qkv, made, "native", options))
    for other in others:
        assert_equal(other, one)


def test_any_strides():
    """Heads that lie side by side as a projection leaves them, and an expanded gradient."""
    torch.manual_seed(6)
    packed = torch.randn(50, 3, HEADS, 3, 32).bfloat16()  # [time, batch, heads, qkv, width]
    qkv = [packed[:, :, :, n].permute(1, 2, 0, 3).requires_grad_() for n in range(2)]
    qkv.append(packed[:, :, :, 2].permute(1, 2, 3, 0).contiguous().transpose(2, 3).requires_grad_())
    options = {"causal": True, "impl": "native"}
    results = []
    for some in (qkv, [x.detach().contiguous().requires_grad_() for x in qkv]):
        y = composite_attention(*some, {"content": None}, **options)
        results.append((y, *torch.autograd.grad(y.sum(), some)))
    assert_equal(*results)


def test_only_the_wanted_gradients():
    torch.manual_seed(7)
    qkv, made = inputs(40, 40), {"content": None, "fixed": torch.randn(HEADS, SPAN + 1)}
    y = composite_attention(*qkv, made, causal=True, impl="native")
    every = torch.autograd.grad(y.sum(), qkv, retain_graph=True)
    for n, x in enumerate(qkv):
        (one,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(one, every[n])


def test_no_sentences():
    fixed = torch.randn(HEADS, SPAN + 1, requires_grad=True)
    given = [*inputs(6, 6, batch=0), fixed]
    made = {"content": None, "fixed": fixed}
    y = composite_attention(*given[:3], made, causal=True, impl="native")
    assert [x.shape for x in torch.autograd.grad(y.sum(), given)] == [x.shape for x in given]


@pytest.mark.slow
def test_keeps_pytorchs_rules(monkeypatch):
    from fairseq_convattn.ops.attention import operators

    calls, unpack = [], operators._unpack
    monkeypatch.setattr(operators, "_unpack", lambda inputs: calls.append(inputs) or unpack(inputs))
    made = table_parameters(SUBSETS[2], lambda *s: torch.randn(HEADS, *s), False, SPAN, 24)
    composite_attention(*inputs(9, 9), made, causal=False, dropout_p=0.3, impl="native")
    arguments = tuple(
        x.detach().requires_grad_(x.is_floating_point()) if torch.is_tensor(x) else x
        for x in calls[0]
    )
    torch.library.opcheck(torch.ops.convattn.attend_native_bfloat16.default, arguments)
    y, lse = torch.ops.convattn.attend_native_bfloat16(*arguments)
    arguments = [x.detach() if torch.is_tensor(x) else x for x in arguments]
    backward = torch.ops.convattn.attend_native_bfloat16_backward
    given = torch.randn_like(y), y.detach(), lse.detach()
    wanted = [x is not None for x in arguments[:8]]
    torch.library.opcheck(backward.default, (*given, *arguments, wanted))
    for wrong in ((given[0].float(), *given[1:]), (*given[:2], lse.detach().bfloat16())):
        with pytest.raises(ValueError, match="lse"):
            backward(*wrong, *arguments, wanted)
