"""Composite attention's Triton kernels against the reference: on a GPU, else interpreted."""

import importlib
import itertools
import os
import subprocess
import sys

import pytest
import torch
from attention_cases import converted, gradients, table_parameters, tensors
from conftest import PLUGIN
from kernel_cases import assert_equal
from triton_cases import DEVICE, FAR, GPU, far_apart, needs_gpu, record_grids

from fairseq_convattn.ops import composite_attention, implementation
from fairseq_convattn.ops.attention import BEYOND, TERMS
from fairseq_convattn.ops.attention.dropout import Dropout

triton, tl = map(importlib.import_module, ("triton", "triton.language"))
operators, scores, triton_launch, triton_scores = (
    importlib.import_module(f"fairseq_convattn.ops.attention.{name}")
    for name in ("operators", "scores", "triton_launch", "triton_scores")
)
HEADS, WIDTH, VALUES, SPAN = 2, 8, 12, 3
COMBINATIONS = [
    ("content", "fixed"),
    ("content", "tisa"),
    ("content", "fixed", "query"),
    ("content", "fixed", "query", "key"),
    tuple(TERMS),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, request):
    """The smallest that there are, so that short inputs have several."""
    if "own_blocks" not in request.fixturenames:
        set_blocks(monkeypatch, (16, 16), (16, 16))


@pytest.fixture
def own_blocks():
    """Those for GPUs."""


def set_blocks(monkeypatch, forward, backward):
    for name, shape in (
        ("_forward_blocks", forward),
        ("_blocks_by_queries", backward),
        ("_blocks_by_keys", backward),
    ):
        blocks = triton_launch.Blocks(*shape, 4, 1)
        monkeypatch.setattr(triton_launch, name, lambda *_, blocks=blocks: blocks)


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(DEVICE, dtype).requires_grad_()


def parameters(terms, causal, heads=HEADS, width=WIDTH, span=SPAN, dtype=torch.float32):
    return table_parameters(
        terms, lambda *shape: random(heads, *shape, dtype=dtype), causal, span, width
    )


def inputs(queries, keys, width=WIDTH, values=VALUES, batch=1, heads=HEADS, dtype=torch.float32):
    shapes = ((queries, width), (keys, width), (keys, values))
    return [random(batch, heads, *shape, dtype=dtype) for shape in shapes]


def padding(keys):
    """On both sides of one sentence, all over the other."""
    mask = torch.zeros(2, keys, dtype=torch.bool, device=DEVICE)
    mask[0, : keys // 4], mask[0, keys - keys // 5 :], mask[1] = True, True, True
    return mask


def run(qkv, terms, impl="triton", causal=False, beyond="clip", span=SPAN, **options):
    return composite_attention(
        *qkv, terms, impl=impl, causal=causal, beyond=beyond, span=span, **options
    )


def with_gradients(qkv, terms, **options):
    wanted = [x for x in (*qkv, *tensors(terms)) if x.requires_grad]
    return gradients(run(qkv, terms, **options), wanted)


def assert_near(actual, expected, tolerance):
    """Relative to the largest element."""
    assert actual.shape == expected.shape and actual.isfinite().all()
    difference = (actual.float() - expected.float()).abs().max()
    assert difference <= tolerance * max(1, expected.abs().max()), difference


def compare(qkv, terms, tolerance=1e-5, **options):
    actual = with_gradients(qkv, terms, **options)
    expected = with_gradients(qkv, terms, impl="reference", **options)
    for x, y in zip(actual, expected, strict=True):
        assert_near(x, y, tolerance)


@pytest.mark.parametrize("term, causal", list(zip(TERMS, itertools.cycle((False, True)))))  # noqa: B905
def test_every_term(term, causal):
    torch.manual_seed(1)
    compare(inputs(18, 18), parameters((term,), causal), causal=causal)


TOGETHER = list(itertools.product(COMBINATIONS, BEYOND, (False, True)))


@pytest.mark.parametrize(
    "terms, beyond, causal",
    [pytest.param(*case, marks=() if i % 5 == 0 or GPU else pytest.mark.slow)
     for i, case in enumerate(TOGETHER)],
)  # fmt: skip
def test_terms_together(terms, beyond, causal):
    """Interpreted, every fifth: each combination, and each ``beyond`` causal and not."""
    torch.manual_seed(2)
    compare(
        inputs(19, 23, batch=2),
        parameters(terms, causal),
        causal=causal,
        beyond=beyond,
        padding_mask=padding(23),
    )


FOUR = ("content", "fixed", "query", "key")
SHAPES = [  # terms, causal, beyond; queries, keys; span; widths of keys and values
    *(
        (FOUR, causal, "clip", lengths, SPAN, (WIDTH, VALUES))
        for lengths in ((1, 1), (1, 33), (16, 16), (17, 40))
        for causal in (False, True)
    ),
    (FOUR, True, "zero", (21, 21), 0, (WIDTH, VALUES)),
    (FOUR, False, "mask", (21, 21), 0, (WIDTH, VALUES)),
    (FOUR, False, "clip", (21, 21), 1, (WIDTH, VALUES)),
    (FOUR, True, "mask", (21, 21), 30, (WIDTH, VALUES)),
    (("content", "query", "key_only"), True, "clip", (18, 18), SPAN, (20, 40)),
    (("content", "query", "key_only"), True, "clip", (18, 18), SPAN, (33, 7)),
    (("content", "query", "key_only"), True, "clip", (18, 18), SPAN, (1, 32)),
]


@pytest.mark.parametrize("terms, causal, beyond, lengths, span, widths", SHAPES, ids=str)
def test_every_length_span_and_width(terms, causal, beyond, lengths, span, widths):
    torch.manual_seed(3)
    made = parameters(terms, causal, width=widths[0], span=span)
    compare(inputs(*lengths, *widths), made, causal=causal, beyond=beyond, span=span)


@pytest.mark.parametrize(
    "forward, backward", [((32, 16), (16, 32)), ((16, 64), (32, 64)), ((16, 16), (32, 16))]
)
def test_blocks_of_any_shape(monkeypatch, forward, backward):
    set_blocks(monkeypatch, forward, backward)
    torch.manual_seed(6)
    for causal, beyond in ((False, "mask"), (True, "clip")):
        terms = parameters(("content", "tisa", "query", "key"), causal, heads=1)
        compare(inputs(40, 70, heads=1), terms, causal=causal, beyond=beyond)


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_wider_than_the_keys_is_none(causal):
    qkv, terms = inputs(20, 30), parameters(("content", "key_only"), causal)
    expected = run(qkv, terms, causal=causal)
    for span in (30, 2**31 - 1, 2**40):
        assert_near(run(qkv, terms, causal=causal, beyond="mask", span=span), expected, 1e-6)


@pytest.mark.parametrize("beyond", BEYOND)
def test_far_keys_on_either_side(beyond):
    """Most tiles lie where the curve is flat, before the queries or after them."""
    torch.manual_seed(9)
    terms = parameters(("content", "fixed", "query", "key"), False, heads=1)
    compare(inputs(66, 82, heads=1), terms, causal=False, beyond=beyond)


@pytest.mark.parametrize("causal", [False, True])
def test_keys_beyond_the_end_of_the_curve(monkeypatch, causal):
    set_blocks(monkeypatch, (64, 64), (64, 64))
    torch.manual_seed(10)
    length = triton_scores.MARGIN.value + 70
    terms = parameters(("content", "fixed"), causal, heads=1, span=1)
    compare(inputs(length, length, heads=1), terms, causal=causal, span=1)


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("causal", [False, True])
def test_taps_by_eights_as_for_half_precision(monkeypatch, causal, beyond):
    def multiply(x, table):
        assert table.size(1) % 8 == 0 or table.size(1) == 1  # the step
        return x @ table.transpose(-1, -2)

    monkeypatch.setattr(scores._HalfProducts, "apply", multiply)
    monkeypatch.setattr(scores, "_in_halves", lambda x: True)
    torch.manual_seed(11)
    terms = parameters(("content", "fixed", "query"), causal)
    compare(inputs(20, 40), terms, causal=causal, beyond=beyond)


def test_curves_of_other_lengths_are_refused():
    q, k, v = inputs(5, 5)
    for before, after in ((None, None), (2, 300), (300, 2)):
        size = 9 if before is None else before + 1 + after
        curve = random(1, size).detach()
        layout = (0, 0, None, True, 1.0, before, after)
        with pytest.raises(ValueError, match="before"):
            torch.ops.convattn.attend_triton(
                q, k, v, curve, None, None, None, None, None, 0.0, *layout
            )


def test_tables_that_heads_share():
    torch.manual_seed(7)
    for beyond in ("clip", "zero"):
        compare(inputs(18, 18), parameters(TERMS, False, heads=1), beyond=beyond)


def test_inputs_of_any_stride():
    torch.manual_seed(8)
    time_first = [random(18, 2, HEADS, WIDTH).permute(1, 2, 0, 3) for _ in range(3)]
    compare(time_first, parameters(("content", "query", "key"), False))
    width_first = [random(WIDTH, 2, HEADS, 18).permute(1, 2, 3, 0) for _ in range(3)]
    compare(width_first, parameters(("content", "fixed"), True), causal=True)


def test_padding_gives_zeros_where_nothing_is_seen():
    torch.manual_seed(9)
    qkv, terms = inputs(20, 20, batch=2), parameters(TERMS, True)
    y, *grads = with_gradients(qkv, terms, causal=True, padding_mask=padding(20))
    assert y[1].eq(0).all() and y[0, :, :5].eq(0).all() and y[0, :, 5:].ne(0).all()
    assert all(grad[1].eq(0).all() for grad in grads[:3])
    assert grads[1][0, :, :5].eq(0).all() and grads[2][0, :, 16:].eq(0).all()


def test_tables_without_gradients():
    torch.manual_seed(10)
    terms = converted(parameters(TERMS, False), torch.detach)
    compare(inputs(18, 18), terms)
    compare([x.detach().requires_grad_(i == 2) for i, x in enumerate(inputs(18, 18))], terms)


@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float16, 5e-3), pytest.param(torch.bfloat16, 4e-2, marks=needs_gpu)],
)
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision(dtype, tolerance, causal):
    torch.manual_seed(11)
    terms = parameters(("content", "fixed", "query", "key", "key_only"), causal, dtype=dtype)
    qkv = inputs(20, 20, dtype=dtype)
    assert run(qkv, terms, causal=causal).dtype == dtype
    compare(qkv, terms, tolerance, causal=causal)


def dropped_weights(qkv, terms, p, seed, **options):
    """The weights as dropout leaves them: what values of one at a single key give."""
    torch.manual_seed(seed)
    keys = qkv[1].size(2)
    one_hot = torch.eye(keys, device=DEVICE).expand(*qkv[1].shape[:2], -1, -1)
    return run((*qkv[:2], one_hot), terms, dropout_p=p, **options)


def test_dropout_drops_and_scales_weights():
    torch.manual_seed(12)
    qkv, terms = inputs(40, 40, batch=2), parameters(("content", "fixed"), False)
    full = dropped_weights(qkv, terms, 0.0, 1)
    seen = []
    for seed in (1, 1, 2):
        weights = dropped_weights(qkv, terms, 0.3, seed)
        kept = weights != 0
        torch.testing.assert_close(weights, full / 0.7 * kept)
        assert abs(kept.float().mean() - 0.7) < 0.02
        seen.append(kept)
    assert seen[0].equal(seen[1])
    same = [seen[0] == seen[2], seen[0][0] == seen[0][1], seen[0][:, 0] == seen[0][:, 1]]
    same += [seen[0][:, :, 1:] == seen[0][:, :, :-1], seen[0][..., 1:] == seen[0][..., :-1]]
    for other in same:  # drawn independently for every call, sentence, head, query and key
        assert abs(other.float().mean() - 0.58) < 0.03


def test_dropout_drops_the_same_weights_forward_and_backward():
    torch.manual_seed(13)
    qkv, terms = inputs(20, 37), parameters(("content", "tisa", "query"), True)
    kept = dropped_weights(qkv, terms, 0.4, 5, causal=True) != 0
    torch.manual_seed(5)
    actual = with_gradients(qkv, terms, causal=True, dropout_p=0.4)
    one_hot = torch.eye(37, device=DEVICE).expand(1, HEADS, -1, -1)
    weights = run((*qkv[:2], one_hot), terms, impl="reference", causal=True)
    dropped = gradients((weights * kept / 0.6) @ qkv[2], [*qkv, *tensors(terms)])
    for x, expected in zip(actual, dropped, strict=True):
        assert_near(x, expected, 1e-5)


@triton.jit(do_not_specialize=["head", "first", "queries"])
def draw(kept, head, first, queries, threshold, seed):
    """Which weights of the first 64 keys of a query dropout keeps."""
    n, t = tl.arange(0, 64), first + tl.arange(0, 1)
    drawn = triton_scores.kept_by_dropout(head.to(tl.int64), t, n, queries, threshold, seed)
    tl.store(kept + n, tl.ravel(drawn))


def test_dropout_is_that_of_the_other_implementations():
    dropout = Dropout(0.5, torch.tensor(2**61 + 12345, device=DEVICE))
    kept, keys = torch.zeros(64, dtype=torch.int32, device=DEVICE), torch.arange(64, device=DEVICE)
    for head, query, queries in ((0, 0, 1), (3, 7, 1000), (2**15, 2**16 - 1, 2**16)):
        draw[(1,)](kept, head, query, queries, dropout.threshold, dropout.seed)
        row = torch.tensor(head * queries + query, device=DEVICE)
        assert torch.equal(kept != 0, dropout.factors(row, keys, torch.float64) != 0)
        assert 10 < kept.sum() < 54


def test_a_query_that_is_no_number_is_not_one_that_sees_nothing():
    q, k, v = (x.detach() for x in inputs(5, 5))
    q[:, :, 2] = float("nan")
    y = run((q, k, v), {"content": None}, causal=True)
    assert y[:, :, 2].isnan().all() and y[:, :, [0, 1, 3, 4]].isfinite().all()


def test_offsets_beyond_32_bits():
    torch.manual_seed(21)
    qkv, terms = inputs(5, 5, values=WIDTH, dtype=torch.float16), {"content": None}
    expected = with_gradients(qkv, terms)
    far = [far_apart(x, 2).requires_grad_() for x in qkv]
    assert 4 * far[0].stride(2) > 2**31 and far[0].stride(2) == FAR
    y = run(far, terms)
    weights = torch.linspace(-1, 1, y.numel(), device=DEVICE).view_as(y).half()
    grads = torch.autograd.grad(y, far, far_apart(weights, 2))
    assert_equal((y, *grads), expected)


def test_grids_of_more_than_65535_blocks(monkeypatch):
    """Only the first dimension of a grid may have so many."""
    kernels = "forward_by_queries", "backward_by_queries", "backward_by_keys"
    grids = record_grids(monkeypatch, triton_launch, *kernels)
    qkv = [random(70_000, 1, 1, 1) for _ in range(3)]
    torch.autograd.grad(run(qkv, {"content": None}).sum(), qkv)
    assert grids == [(70_000,)] * 3


def test_gradients_of_any_stride():
    qkv, terms = inputs(20, 20), parameters(TERMS, False)
    y = run(qkv, terms)
    wanted = [*qkv, *tensors(terms)]
    weights = random(20, 1, HEADS, VALUES).detach().permute(1, 2, 0, 3)
    for strided in (weights, weights[..., :1].expand(y.shape)):
        actual = torch.autograd.grad(y, wanted, strided, retain_graph=True)
        expected = torch.autograd.grad(y, wanted, strided.contiguous(), retain_graph=True)
        assert_equal(actual, expected)


def test_operators_keep_pytorchs_rules(monkeypatch):
    unpack, calls = operators._unpack, []
    monkeypatch.setattr(operators, "_unpack", lambda inputs: calls.append(inputs) or unpack(inputs))
    run(inputs(5, 5), parameters(("content", "query"), False), dropout_p=0.3)
    (arguments,) = calls
    arguments = [x.detach() if torch.is_tensor(x) else x for x in arguments]
    y, lse = torch.ops.convattn.attend_triton(*arguments)
    arguments[0].requires_grad_()
    torch.library.opcheck(torch.ops.convattn.attend_triton.default, tuple(arguments))
    arguments[0] = arguments[0].detach()
    given = torch.randn_like(y), y, lse, *arguments, [x is not None for x in arguments[:8]]
    torch.library.opcheck(torch.ops.convattn.attend_triton_backward.default, given)


def test_inside_a_compiled_function():
    qkv, terms, results = inputs(9, 9), parameters(("content", "query"), True), []
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for function in (run, compiled):
        results.append(gradients(function(qkv, terms, causal=True), [*qkv, *tensors(terms)]))
    assert_equal(*results)


def test_refuses_what_it_cannot_compute(monkeypatch):
    terms = {"content": None}
    with pytest.raises(ValueError, match="half precision, not torch.float64"):
        run([x.double() for x in inputs(5, 5)], terms)
    with pytest.raises(ValueError, match="at most 256, not 257"):
        run(inputs(5, 5, values=257), terms)
    if not GPU:
        with pytest.raises(ValueError, match="needs a GPU for bfloat16"):
            run(inputs(5, 5, dtype=torch.bfloat16), terms)
    monkeypatch.setattr(implementation, "has_triton", lambda: False)
    with pytest.raises(ValueError, match="pip install triton"):
        run(inputs(5, 5), terms)


@pytest.mark.slow
@pytest.mark.ci
def test_without_fairseq_and_without_the_interpreter():
    code = (
        "import sys, torch, ops\n"
        "x = torch.zeros(1, 1, 4, 8)\n"
        "ops.composite_attention(x, x, x, {'content': None}, causal=True)\n"
        "try: ops.composite_attention(x, x, x, {'content': None}, causal=True, impl='triton')\n"
        "except ValueError as error: print(error, 'fairseq' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN), "TRITON_INTERPRET": "0"}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "needs tensors on a GPU" in process.stdout and process.stdout.endswith("False\n")


def test_precision_follows_pytorchs_settings_old_and_new():
    """In a process of its own: after the new ones PyTorch refuses to read some of the old ones."""
    code = (
        "import torch\n"
        "from ops.triton_tensors import precision\n"
        "gpu, matmul = torch.device('cuda'), torch.backends.cuda.matmul\n"
        "found = [precision(gpu)]\n"
        "for name in ('high', 'highest'):\n"
        "    torch.set_float32_matmul_precision(name)\n"
        "    found.append(precision(gpu))\n"
        "matmul.fp32_precision = 'tf32'\n"
        "print(*found, precision(gpu))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PLUGIN)},
    )  # fmt: skip
    assert process.stdout.split() == ["tf32x3", "tf32", "tf32x3", "tf32"], process.stderr


def test_is_what_gpus_use_by_default(monkeypatch):
    used = []
    attend = triton_launch.attend
    monkeypatch.setattr(triton_launch, "attend", lambda *a, **k: used.append(1) or attend(*a, **k))
    run(inputs(5, 5), {"content": None}, impl=None)
    assert len(used) == GPU
    run([x.double() for x in inputs(5, 5)], {"content": None}, impl=None)
    assert len(used) == GPU


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [32, 64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_large_inputs(own_blocks, causal, width, dtype):
    torch.manual_seed(16)
    tolerance = {torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    for (queries, keys), terms in itertools.product(((1000, 1000), (130, 517)), COMBINATIONS):
        made = parameters(terms, causal, heads=1, width=width, span=8, dtype=dtype)
        qkv = inputs(queries, keys, width, width, batch=2, dtype=dtype)
        for beyond in ("clip", "mask"):
            options = {"causal": causal, "beyond": beyond, "span": 8, "padding_mask": padding(keys)}
            compare(qkv, made, tolerance, **options)


@needs_gpu
def test_large_inputs_give_the_same_bits(own_blocks):
    torch.manual_seed(17)
    qkv = inputs(1000, 1000, 64, 64, batch=8, heads=12, dtype=torch.bfloat16)
    terms = parameters(("content", "fixed", "query", "key"), False, heads=12, width=64)

    def once():
        torch.manual_seed(18)
        return with_gradients(qkv, terms, dropout_p=0.1)

    assert_equal(once(), once())
