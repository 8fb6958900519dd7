"""Composite attention: every term, against the reference and against known values."""

import contextlib
import importlib
import itertools

import pytest
import torch
import torch.nn.functional as F
from attention_cases import converted, gradients, set_small_blocks, table_parameters, tensors
from kernel_cases import NATIVE, assert_equal, kernels_for, needs_kernels, with_threads
from torch.autograd import gradcheck

from fairseq_convattn.ops import composite_attention, relative_bias, use_implementation
from fairseq_convattn.ops.attention import BEYOND, TERMS, alibi_slopes
from fairseq_convattn.ops.attention import scores as attention_scores
from fairseq_convattn.ops.attention.dropout import Dropout
from fairseq_convattn.ops.attention.terms import Options, t5_buckets
from fairseq_convattn.ops.native import is_built

HEADS, WIDTH, SPAN = 2, 4, 2
LENGTHS = [(1, 1), (2, 2), (3, 9), (1, 6), (13, 13)]
IMPLEMENTATIONS = ["reference", "tiled"]
WITH_NATIVE = [*IMPLEMENTATIONS, NATIVE]


@pytest.fixture(params=IMPLEMENTATIONS)
def impl(request):
    return request.param


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def parameters(terms, causal, heads=HEADS, dtype=torch.float64):
    return table_parameters(
        terms, lambda *shape: random(heads, *shape, dtype=dtype), causal, SPAN, WIDTH
    )


def inputs(queries, keys, batch=3, dtype=torch.float64):
    return [random(batch, HEADS, time, WIDTH, dtype=dtype) for time in (queries, keys, keys)]


def run(qkv, terms, beyond, **options):
    span = SPAN if beyond == "mask" else None
    return composite_attention(*qkv, terms, beyond=beyond, span=span, **options)


def with_gradients(qkv, terms, *arguments, **options):
    return gradients(run(qkv, terms, *arguments, **options), [*qkv, *tensors(terms)])


def compare(qkv, terms, *arguments, **options):
    outputs = (
        with_gradients(qkv, terms, *arguments, impl=impl, **options) for impl in IMPLEMENTATIONS
    )
    expected, actual = outputs
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=1e-11)
    if is_built():
        compare_native(expected, qkv, terms, *arguments, **options)


def single(x):
    return x.detach().float().requires_grad_()


def compare_native(expected, qkv, terms, *arguments, **options):
    """The kernels compute in single precision."""
    qkv, terms = [single(x) for x in qkv], converted(terms, single)
    actual = with_gradients(qkv, terms, *arguments, impl="native", **options)
    for e, a in zip(expected, actual, strict=True):
        scale = max(1, e.abs().max().item())
        torch.testing.assert_close(a.double() / scale, e / scale, rtol=0, atol=5e-5)


def paddings(keys):
    """None; at either end; and also in between, and all of a sentence."""
    ends = torch.zeros(3, keys, dtype=torch.bool)
    ends[0, : keys // 2], ends[1, keys // 3 + 1 :] = True, True
    everywhere = ends.clone()
    everywhere[0, keys - 2 : keys - 1], everywhere[2] = True, True
    return None, ends, everywhere


@pytest.mark.parametrize("queries, keys", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_at_every_length(monkeypatch, causal, queries, keys):
    set_small_blocks(monkeypatch)
    torch.manual_seed(1)
    subsets = [("content", "query"), ("key",), tuple(TERMS)]
    for i, (beyond, padding_mask) in enumerate(itertools.product(BEYOND, paddings(keys))):
        for j, terms in enumerate(subsets):
            heads = (1, HEADS)[(i + j) % 2]  # of the tables
            options = {"causal": causal, "padding_mask": padding_mask}
            compare(inputs(queries, keys), parameters(terms, causal, heads), beyond, **options)


@needs_kernels
@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_instruction_set(instructions, causal):
    torch.manual_seed(9)
    with kernels_for(instructions):
        for beyond, (queries, keys) in itertools.product(BEYOND, ((37, 37), (70, 75))):
            for padding_mask in paddings(keys):
                options = {"causal": causal, "padding_mask": padding_mask}
                compare(inputs(queries, keys), parameters(TERMS, causal), beyond, **options)


@needs_kernels
@pytest.mark.parametrize("terms", [("content", "fixed"), tuple(TERMS)], ids=",".join)
def test_any_number_of_threads(terms):
    torch.manual_seed(10)
    qkv = inputs(300, 300, dtype=torch.float32)
    terms = parameters(terms, False, dtype=torch.float32)
    first, *others = with_threads(
        (1, 2, 3), lambda: with_gradients(qkv, terms, "clip", causal=False, impl="native")
    )
    for other in others:
        torch.testing.assert_close(first, other)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "instructions",
    [None, *(pytest.param(x, marks=needs_kernels) for x in ("portable", "avx2", "avx512"))],
)
def test_dropout_is_by_the_weights_place(monkeypatch, instructions, causal):
    """In blocks, with compiled kernels for the instructions or without, and in the reference."""
    set_small_blocks(monkeypatch)
    torch.manual_seed(11)
    impl, dtype = ("native", torch.float32) if instructions else ("tiled", torch.float64)
    with kernels_for(instructions) if instructions else contextlib.nullcontext():
        for beyond, padding_mask in itertools.product(("clip", "mask"), paddings(43)):
            options = {"causal": causal, "padding_mask": padding_mask, "dropout_p": 0.3}
            qkv, terms = inputs(40, 43), parameters(TERMS, causal)
            torch.manual_seed(12)
            factors = Dropout(0.3, torch.randint(2**62, ())).factors(
                torch.arange(3 * HEADS * 40).view(3, HEADS, 40), torch.arange(43), torch.float64
            )
            with monkeypatch.context() as patch:
                patch.setattr(F, "dropout", lambda weights, p, factors=factors: weights * factors)
                expected = with_gradients(qkv, terms, beyond, impl="reference", **options)
            given = [x.detach().to(dtype).requires_grad_() for x in qkv]
            terms = converted(terms, lambda x: x.detach().to(dtype).requires_grad_())
            torch.manual_seed(12)
            actual = with_gradients(given, terms, beyond, impl=impl, **options)
            for e, a in zip(expected, actual, strict=True):
                torch.testing.assert_close(a, e.to(dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_draws_every_weight_independently(p):
    rows, columns = torch.arange(2000), torch.arange(500)
    drawn = [
        Dropout(p, torch.tensor(seed)).factors(rows, columns, torch.float64)
        for seed in (5, 6, 5 + (1 << 32))
    ]
    assert drawn[0].unique().tolist() == [0, 1 / (1 - p)]
    kept, other, another = ((x > 0).double() - (1 - p) for x in drawn)
    pairs = [(kept[i:], kept[:-i]) for i in (1, 2, 64, 500)]
    pairs += [(kept[:, i:], kept[:, :-i]) for i in (1, 2, 8, 16)]
    pairs += [(kept[1:, 1:], kept[:-1, :-1]), (kept[1:, :-1], kept[:-1, 1:])]
    pairs += [(kept, other), (kept, another), (kept[::2], kept[1::2])]
    assert abs(kept.mean()) < 5 * (p * (1 - p) / kept.numel()) ** 0.5
    for a, b in pairs:
        assert abs((a * b).mean()) < 5 * p * (1 - p) / a.numel() ** 0.5


def test_choice_of_implementation():
    q = torch.randn(1, 1, 4, WIDTH, requires_grad=True)
    for x, takes_native in ((q.double(), False), (q, is_built())):
        if not takes_native:
            with pytest.raises(ValueError, match="impl='native'"):
                composite_attention(x, x, x, {"content": None}, causal=True, impl="native")
        y = composite_attention(x, x, x, {"content": None}, causal=True)
        assert ("native" in y.grad_fn.name().lower()) == takes_native


@pytest.mark.parametrize(
    "impl, dtype, terms",
    [
        ("tiled", torch.float64, ("fixed",)),
        pytest.param("native", torch.float32, tuple(TERMS), marks=needs_kernels),
    ],
)
def test_operators_keep_pytorchs_rules(monkeypatch, impl, dtype, terms):
    """With few optional tensors and with all; called as the operation calls them."""
    operators, calls = importlib.import_module("fairseq_convattn.ops.attention.operators"), []
    name, backward = f"attend_{impl}", f"attend_{impl}_backward"
    made, qkv = parameters(terms, False, dtype=dtype), inputs(9, 9, dtype=dtype)
    unpack = operators._unpack
    monkeypatch.setattr(operators, "_unpack", lambda inputs: calls.append(inputs) or unpack(inputs))
    run(qkv, made, "clip", causal=False, padding_mask=paddings(9)[2], dropout_p=0.3, impl=impl)
    (arguments,) = calls
    arguments = [
        x.detach().requires_grad_(x.is_floating_point()) if torch.is_tensor(x) else x
        for x in arguments
    ]
    torch.library.opcheck(getattr(torch.ops.convattn, name).default, tuple(arguments))
    y, sums = getattr(torch.ops.convattn, name)(*arguments)
    arguments = [x.detach() if torch.is_tensor(x) else x for x in arguments]
    wanted = [x is not None for x in arguments[:8]]
    for needed in (wanted, [*wanted[:2], *[False] * 6]):
        given = torch.randn_like(y), y.detach(), sums, *arguments, needed
        torch.library.opcheck(getattr(torch.ops.convattn, backward).default, given)


@pytest.mark.parametrize("impl", ["tiled", NATIVE])
def test_operators_refuse_what_is_not_in_memory(monkeypatch, impl):
    operators, calls = importlib.import_module("fairseq_convattn.ops.attention.operators"), []
    unpack = operators._unpack
    monkeypatch.setattr(operators, "_unpack", lambda inputs: calls.append(inputs) or unpack(inputs))
    made = parameters(TERMS, False, dtype=torch.float32)
    run(inputs(9, 9, dtype=torch.float32), made, "clip", causal=False, impl=impl)
    arguments = [x.detach() if torch.is_tensor(x) else x for x in calls[0]]
    forward, backward = (
        getattr(torch.ops.convattn, f"attend_{impl}{end}") for end in ("", "_backward")
    )
    y, lse = forward(*arguments)
    for place, x in enumerate(arguments):
        if torch.is_tensor(x):
            for wrong in (x[:, :, 1:] if x.dim() == 4 else x[..., 1:], x.bfloat16()):
                with pytest.raises(ValueError, match="Layout"):
                    given = *arguments[:place], wrong, *arguments[place + 1 :]
                    forward(*given)
    for given in ((y[:, :, 1:], y, lse), (y, y[..., 1:], lse), (y, y, lse[:1])):
        with pytest.raises(ValueError, match="lse"):
            backward(*given, *arguments, [True] * 8)


@pytest.mark.parametrize("impl", WITH_NATIVE)
def test_gradients_stay_finite_at_large_scores(impl):
    """The backward pass computes the weights again: rounding must not make one exceed 1."""
    torch.manual_seed(3)
    q, k, v = (x.detach().requires_grad_() for x in inputs(20, 20, dtype=torch.float32))
    terms = {"content": None, "fixed": torch.full((1, 5), 1e10)}
    y = run((50 * q, 50 * k, v), terms, "clip", causal=True, impl=impl)
    for grad in torch.autograd.grad(y.sum(), (q, k, v)):
        assert grad.isfinite().all()


@pytest.mark.parametrize(
    "impl",
    [
        None,
        "tiled",
        pytest.param("native", marks=[needs_kernels, pytest.mark.slow, pytest.mark.ci]),
    ],
)
def test_inside_a_compiled_function(impl):
    """One graph that calls the operator of the implementation, by default the fastest."""
    from torch._dynamo.backends.common import aot_autograd  # imports Triton

    terms = "content", "query", "key"
    made, called = parameters(terms, True, dtype=torch.float32), set()

    def note(graph, _):
        called.update(str(node.target).split(".")[1] for node in graph.graph.nodes
                      if str(node.target).startswith("convattn"))  # fmt: skip
        return graph

    def function(q, k, v):
        padding_mask = torch.zeros(3, k.size(2), dtype=torch.bool)
        options = {"causal": True, "padding_mask": padding_mask, "impl": impl}
        return run((q.sin(), k, v), made, "clip", **options).cos()

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for queries in (9, 6):  # the second length makes it dynamic
        qkv, results = inputs(queries, 9, dtype=torch.float32), []
        for f in (function, compiled):
            y = f(*qkv)
            results.append((y, *torch.autograd.grad(y.sum(), [*qkv, *tensors(made)])))
        for expected, actual in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    fastest = "native" if is_built() else "tiled"
    name = f"attend_{impl or fastest}"
    assert called == {name, f"{name}_backward"}


def test_traced_at_one_length_it_serves_others():
    terms = converted(parameters(("content", "fixed", "query"), True), lambda x: x.detach().float())

    def attend(q, k, v):
        return composite_attention(q, k, v, terms, causal=True)

    short, long = ([x.detach().float() for x in inputs(time, time)] for time in (5, 9))
    traced = torch.jit.trace(attend, short)
    torch.testing.assert_close(traced(*long), attend(*long))


def test_use_implementation_reaches_attention():
    arguments, refusal = (inputs(5, 5), {"content": None}, "clip"), "impl='native'"
    with use_implementation("native"), pytest.raises(ValueError, match=refusal):
        run(*arguments, causal=True)
    with use_implementation("native"):
        run(*arguments, causal=True, impl="reference")
    run(*arguments, causal=True)


def test_what_operators_cannot_differentiate():
    """By default the reference does it; an implementation that is asked for refuses."""
    q, terms = inputs(9, 9, dtype=torch.float32)[0].detach(), {"content": None}

    def function(q, impl=None):
        return composite_attention(q, q, q, terms, causal=True, impl=impl).square().sum()

    x = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(x), x)
    torch.testing.assert_close(torch.func.grad(function)(q), expected)
    _, tangent = torch.func.jvp(function, (q,), (q,))
    torch.testing.assert_close(tangent, (expected * q).sum())
    for impl in ("tiled", "native") if is_built() else ("tiled",):
        with pytest.raises(ValueError, match=f"impl='{impl}' does not support .*torch.func"):
            torch.func.grad(function)(q, impl)
        for more in ({}, {"key": torch.randn(1, 3, WIDTH)}):
            y = composite_attention(x, x, x, {**terms, **more}, causal=True, impl=impl)
            (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            with pytest.raises(RuntimeError, match="use impl='reference'"):
                grad.sum().backward()


@pytest.mark.parametrize("impl", ["tiled", NATIVE])
def test_gradients_of_any_stride(impl):
    qkv, terms = inputs(9, 9, dtype=torch.float32), parameters(TERMS, False, dtype=torch.float32)
    y = run(qkv, terms, "clip", causal=False, impl=impl)
    wanted = [*qkv, *tensors(terms)]
    weights = torch.randn(9, 3, HEADS, WIDTH).permute(1, 2, 0, 3)
    for strided in (weights, weights[..., :1].expand(y.shape), torch.ones(()).expand(y.shape)):
        assert not strided.is_contiguous()
        actual = torch.autograd.grad(y, wanted, strided, retain_graph=True)
        expected = torch.autograd.grad(y, wanted, strided.contiguous(), retain_graph=True)
        assert_equal(actual, expected)


@pytest.mark.parametrize("queries, keys", [(2, 2), (1, 30)])
def test_tables_meet_no_keys_that_they_do_not_reach(monkeypatch, queries, keys):
    sizes, multiply = [], attention_scores._products

    def products(x, table):
        sizes.append((x.size(2), table.size(1)))
        return multiply(x, table)

    monkeypatch.setattr(attention_scores, "_products", products)
    q, k, v = inputs(queries, keys)
    options = Options(True, "mask", SPAN, None, 0.0, 1.0)
    attention_scores.decompose(q, k, v, parameters(["key"], True), options)
    reached = min(keys, queries + SPAN)
    assert sizes == [(reached, min(keys, SPAN + 1))]


def test_beyond_the_span(impl):
    """What the scores of far keys are: those of the edge, none, or nothing is seen."""
    q, k, v = inputs(8, 8)
    beta = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    r = torch.arange(8) - torch.arange(8).unsqueeze(1)
    for beyond, left, right in (("clip", 0.3, 2.0), ("zero", 0, 0), ("mask", -1e30, -1e30)):
        bias = torch.full((8, 8), float(left), dtype=torch.float64)
        bias[r > 1] = right
        for tap, distance in enumerate((-1, 0, 1)):
            bias[r == distance] = beta[0, tap]
        terms = {"content": None, "fixed": beta}
        y = composite_attention(q, k, v, terms, causal=False, beyond=beyond, impl=impl)
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("impl", WITH_NATIVE)
def test_a_window_wider_than_the_keys_is_none(impl):
    qkv = inputs(3, 5, dtype=torch.float32)
    terms = {"content": None, "key_only": random(HEADS, WIDTH, dtype=torch.float32)}
    for causal in (False, True):
        expected = composite_attention(*qkv, terms, causal=causal, impl=impl)
        for span in (5, 2**31 - 1, 2**40):
            options = {"causal": causal, "beyond": "mask", "span": span, "impl": impl}
            torch.testing.assert_close(composite_attention(*qkv, terms, **options), expected)


def test_padding_gives_zeros_where_nothing_is_seen(impl):
    qkv = inputs(6, 6)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[0, :2], mask[1] = True, True
    for causal, beyond in itertools.product((False, True), BEYOND):
        terms = parameters(TERMS, causal)
        y, *grads = with_gradients(qkv, terms, beyond, causal=causal, padding_mask=mask, impl=impl)
        assert y[1].eq(0).all() and y[2].ne(0).all()
        assert y[0, :, :2].eq(0).all() == causal
        assert all(grad.isfinite().all() for grad in grads)
        assert grads[2][1].eq(0).all() and grads[1][0, :, :2].eq(0).all()


def test_dropout_drops_the_same_weights_forward_and_backward(monkeypatch, impl):
    """Those of the seed."""
    set_small_blocks(monkeypatch)
    torch.manual_seed(4)
    terms = parameters(("content", "fixed", "query"), True)
    qkv = inputs(5, 9, batch=1)

    def dropped(*arguments, seed=5):
        torch.manual_seed(seed)
        return run(arguments, terms, "clip", causal=True, dropout_p=0.4, impl=impl)

    assert gradcheck(dropped, qkv)
    for other in (dropped(*qkv, seed=6), run(qkv, terms, "clip", causal=True)):
        assert not torch.allclose(dropped(*qkv), other)


def test_dropout_keeps_the_mean(impl):
    torch.manual_seed(6)
    qkv = [x.expand(4000, -1, -1, -1) for x in inputs(3, 3, batch=1)]
    terms = parameters(("content", "tisa"), False)
    y = run(qkv, terms, "clip", causal=False, dropout_p=0.5, impl=impl)
    expected = run(qkv, terms, "clip", causal=False, impl=impl)
    torch.testing.assert_close(y.mean(0), expected[0], rtol=0, atol=0.1)
    assert y.std(0).min() > 0.01


@pytest.mark.parametrize("causal, most", [(True, 252), (False, 508)])
def test_t5s_buckets_end_where_each_distance_would_have_one(causal, most):
    """The last bucket begins at distance 128, which half of the buckets must not reach."""
    distances = torch.tensor([-127, -128, -1000])
    table = torch.arange(float(most)).unsqueeze(0)
    curve = relative_bias({"t5": table}, distances, causal=causal)
    last = table.size(1) // (1 if causal else 2) - 1
    assert curve[0, 0] < last and curve[0, 1:].tolist() == [last, last]
    q, table = torch.randn(1, 1, 2, 4), torch.zeros(1, most + 4)
    with pytest.raises(ValueError, match=f"fewer than {most + 4} buckets, not {most + 4}"):
        composite_attention(q, q, q, {"t5": table}, causal=causal)


def test_curves_do_not_depend_on_the_default_dtype():
    def curves():
        buckets = t5_buckets(torch.arange(-200, 200), 32, bidirectional=True)
        return buckets.tolist(), alibi_slopes(12).tolist()

    expected, dtype = curves(), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert curves() == expected
    finally:
        torch.set_default_dtype(dtype)


@pytest.mark.parametrize("impl", WITH_NATIVE)
def test_no_sentences(impl):
    q, k, v = (x.detach().requires_grad_() for x in inputs(5, 8, batch=0, dtype=torch.float32))
    terms = parameters(["content", "fixed", "tisa"], True, dtype=torch.float32)
    y, *grads = with_gradients((q, k, v), terms, "clip", causal=True, impl=impl)
    assert y.shape == (0, HEADS, 5, WIDTH) and not any(g.any() for g in grads)


@pytest.mark.parametrize("impl", WITH_NATIVE)
def test_scores_of_half_precision_are_float32(impl):
    """Under autocast too: nothing is rounded but the inputs, whose scores here reach 20."""
    torch.manual_seed(5)
    qkv = [3 * x.detach().bfloat16() for x in inputs(20, 20, dtype=torch.float32)]
    terms = parameters(["content", "query", "key", "key_only"], False, dtype=torch.float32)
    terms = converted(terms, lambda x: x.detach().bfloat16())
    exact = converted(terms, torch.Tensor.double)
    expected = composite_attention(*(x.double() for x in qkv), exact, causal=False)
    half = [*qkv[:2], qkv[2].float()]
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = composite_attention(*half, terms, causal=False, impl=impl)
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("impl", WITH_NATIVE)
def test_the_output_has_the_values_precision(impl):
    q, k, v = inputs(5, 5, dtype=torch.float32)
    q, k = q.detach().half(), k.detach().half()
    y = composite_attention(q, k, v.detach(), {"content": None}, causal=True, impl=impl)
    assert y.dtype == torch.float32
