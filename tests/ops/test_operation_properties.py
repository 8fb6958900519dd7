"""Random shapes and options: every implementation gives the reference's numbers.

``CONVATTN_FUZZ_SECONDS`` makes every test look for counter-examples for so long.
"""

import operator
import os
import time

import pytest
import torch
from attention_cases import converted, gradients, set_small_blocks, table_parameters, tensors
from kernel_cases import NATIVE

from fairseq_convattn.ops import (
    Past,
    composite_attention,
    dynamic_conv,
    lightweight_conv,
    low_rank_short_conv,
    short_conv,
)
from fairseq_convattn.ops.attention import TERMS
from fairseq_convattn.ops.attention.terms import BEYOND
from fairseq_convattn.ops.short_convolution import tiled

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

FUZZ_SECONDS = float(os.environ.get("CONVATTN_FUZZ_SECONDS", 0))
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
EXAMPLES = [25, pytest.param(1000, marks=pytest.mark.slow)]

dimension, flag = st.integers(1, 4), st.booleans()
convolutions = st.fixed_dictionaries(
    {
        "time": st.integers(1, 80),
        "batch": st.integers(0, 3),
        "heads": dimension,
        "head_dim": st.integers(1, 20),
        "taps": st.one_of(st.integers(1, 9), st.integers(1, 70)),
        "shared": flag,
        "causal": flag,
        "softmax": flag,
        "dropout_p": st.sampled_from((0.0, 0.4)),
        "sliced": flag,
        "dtype": st.sampled_from([*TOLERANCES]),
        "seed": st.integers(0, 999),
    }
)


def explore(strategy, check, examples):
    """Try so many examples, always the same; or any, for ``FUZZ_SECONDS``."""
    begun, tried = time.monotonic(), 0

    def counted(drawn):
        nonlocal tried
        tried += 1
        check(drawn)

    while True:
        options = {"max_examples": examples, "deadline": None, "database": None}
        options["suppress_health_check"] = list(HealthCheck)
        settings(**options, derandomize=not FUZZ_SECONDS)(given(strategy)(counted))()
        if time.monotonic() - begun >= FUZZ_SECONDS:
            print(f"{tried} inputs")
            return


def errors(actual, expected):
    """Of every tensor the largest one, relative to its largest value where that is above one."""
    assert [a.shape for a in actual] == [e.shape for e in expected]
    pairs = [(a.double(), e.double()) for a, e in zip(actual, expected, strict=True) if e.numel()]
    return [((a - e).abs().max() / e.abs().max().clamp(min=1)).item() for a, e in pairs]


def nudged(x, seed):
    """Every value up or down by float32's rounding; the values themselves without a seed."""
    if seed is None:
        return x.detach()
    signs = 2 * torch.randint(2, x.shape, generator=torch.Generator().manual_seed(seed)) - 1
    return x.detach() * (1 + signs * torch.finfo(torch.float32).eps)


def compare(evaluate, dtype, impl):
    """An implementation with the exact reference. Where terms cancel, the reference in the same
    precision is far off too: it is tried on nudged inputs, and eight times its error is allowed."""
    exact = evaluate(torch.float64, "reference")
    found = errors(evaluate(dtype, impl), exact)
    limits = [TOLERANCES[dtype]] * len(found)
    if not all(map(operator.le, found, limits)):
        tries = [errors(evaluate(dtype, "reference", seed), exact) for seed in range(5)]
        limits = [TOLERANCES[dtype] + 8 * max(each) for each in zip(*tries, strict=True)]
    assert all(map(operator.le, found, limits)), list(zip(found, limits, strict=True))


def made(shape, case):
    """Of the case's dtype; ``sliced``: not contiguous."""
    x = torch.randn(*shape[:-1], 2 * shape[-1]) if case["sliced"] else torch.randn(shape)
    return x[..., : shape[-1]].to(case["dtype"]) if case["sliced"] else x.to(case["dtype"])


def convolution_inputs(case):
    torch.manual_seed(case["seed"])
    where = () if case["shared"] else (case["time"], case["batch"])
    x = made((case["time"], case["batch"], case["heads"] * case["head_dim"]), case)
    return x, made((*where, case["heads"], case["taps"]), case)


def convolve(x, taps, case, **options):
    convolution = lightweight_conv if case["shared"] else dynamic_conv
    return convolution(x, taps, softmax=case["softmax"], **options)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("impl", ["tiled", NATIVE])
def test_convolutions(impl, examples):
    """Outputs and gradients."""

    def check(case):
        inputs = convolution_inputs(case)
        options = {"causal": case["causal"], "dropout_p": case["dropout_p"]}

        def evaluate(dtype, name, nudge=None):
            given = [nudged(t.to(dtype), nudge).requires_grad_() for t in inputs]
            torch.manual_seed(case["seed"])  # of DropConnect
            return gradients(convolve(*given, case, impl=name, **options), given)

        compare(evaluate, case["dtype"], impl)

    explore(convolutions, check, examples)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("impl", ["reference", "tiled", NATIVE])
@torch.no_grad()
def test_convolutions_in_pieces(impl, examples):
    """However a sequence is cut, and whichever state carries it on."""

    def check(case, sizes, has_memory, reordered):
        x, taps = convolution_inputs(case)
        whole = convolve(x, taps, case, causal=True, impl=impl)
        batch, pieces, begin = case["batch"], [], 0
        tail = Past.none(batch, x) if has_memory else x.new_zeros(0, *x.shape[1:])
        for size in sizes:
            here = slice(begin, begin + size)
            if begin < case["time"]:
                part = taps if case["shared"] else taps[here]
                y, tail = convolve(x[here], part, case, causal=True, tail=tail, impl=impl)
                pieces.append(y)
            if has_memory and reordered:
                tail = tail.reorder(torch.arange(batch))
            begin += size
        seen = sum(map(len, pieces))
        assert (
            max(errors([torch.cat(pieces)], [whole[:seen]]), default=0) <= TOLERANCES[case["dtype"]]
        )

    sizes = st.lists(st.integers(1, 20), min_size=1, max_size=30)
    drawn = st.tuples(convolutions, sizes, flag, flag)
    explore(drawn, lambda arguments: check(*arguments), examples)


short_convolutions = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(("headwise", "low_rank")),
        "time": st.integers(1, 80),
        "batch": st.integers(0, 3),
        "heads": dimension,
        "head_dim": st.one_of(st.integers(1, 20), st.sampled_from((16, 32, 64, 128))),
        "taps": st.one_of(st.integers(1, 5), st.integers(1, 40)),
        "ranks": st.integers(1, 20),
        "static": flag,
        "causal": flag,
        "residual": flag,
        "before": st.one_of(st.none(), st.integers(0, 45)),
        "sliced": flag,
        "dtype": st.sampled_from([*TOLERANCES]),
        "seed": st.integers(0, 999),
    }
)


def short_convolution_inputs(case):
    """x, the tail or None, the static taps or None, and the factors of the case's kind."""
    torch.manual_seed(case["seed"])
    where, taps = (case["time"], case["batch"]), case["taps"]
    channels = case["heads"] * case["head_dim"]
    shapes = {
        "headwise": [(*where, case["heads"], taps)],
        "low_rank": [(*where, case["ranks"]), (case["ranks"], taps, channels)],
    }
    goes_on = case["causal"] and case["before"] is not None
    tail = made((case["before"], case["batch"], channels), case) if goes_on else None
    static = made((channels, taps), case) if case["static"] else None
    factors = [made(shape, case) for shape in shapes[case["kind"]]]
    return [made((*where, channels), case), tail, static, *factors]


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("impl", ["tiled", NATIVE])
def test_short_convolutions(monkeypatch, impl, examples):
    """Outputs, with and without earlier inputs, and gradients."""
    monkeypatch.setattr(tiled, "TILE", 16)

    def check(case):
        inputs = short_convolution_inputs(case)
        function = low_rank_short_conv if case["kind"] == "low_rank" else short_conv
        options = {"causal": case["causal"], "residual": case["residual"]}

        def evaluate(dtype, name, nudge=None):
            given = [
                None if t is None else nudged(t.to(dtype), nudge).requires_grad_() for t in inputs
            ]
            x, tail, static, *factors = given
            y = function(x, *factors, static, tail=tail, impl=name, **options)
            y = y if tail is None else y[0]
            return gradients(y, [t for t in given if t is not None])

        compare(evaluate, case["dtype"], impl)

    explore(short_convolutions, check, examples)


attentions = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "heads": dimension,
        "width": st.integers(1, 6),
        "value_width": st.integers(1, 6),
        "keys": st.integers(1, 60),
        "queries": st.integers(1, 60),
        "span": st.integers(0, 9),
        "causal": flag,
        "beyond": st.sampled_from(BEYOND),
        "padded": flag,
        "terms": st.lists(st.sampled_from(sorted(TERMS)), min_size=1, unique=True),
        "sliced": flag,
        "dtype": st.sampled_from([*TOLERANCES]),
        "seed": st.integers(0, 999),
    }
)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("impl", ["tiled", NATIVE])
def test_composite_attention(monkeypatch, impl, examples):
    """Outputs and gradients, of all parameters too."""
    set_small_blocks(monkeypatch)

    def check(case):
        torch.manual_seed(case["seed"])
        batch, heads, keys = case["batch"], case["heads"], case["keys"]
        queries = min(case["queries"], keys)
        lengths = ((queries, "width"), (keys, "width"), (keys, "value_width"))
        qkv = [made((batch, heads, time, case[width]), case) for time, width in lengths]
        causal, span = case["causal"], case["span"]
        # times the distance scores of 100 would be lost in float32's rounding
        terms = table_parameters(
            case["terms"], lambda *s: torch.randn(heads, *s) / 10, causal, span, case["width"]
        )
        options = {"causal": causal, "beyond": case["beyond"], "span": span}
        if case["padded"]:
            options["padding_mask"] = torch.rand(batch, keys) < 0.3

        def evaluate(dtype, name, nudge=None):
            wide = torch.promote_types(dtype, torch.float32)
            given = [nudged(t.to(dtype), nudge).requires_grad_() for t in qkv]
            parameters = converted(terms, lambda t: nudged(t.to(wide), nudge).requires_grad_())
            y = composite_attention(*given, parameters, impl=name, **options)
            return gradients(y, [*given, *tensors(parameters)])

        compare(evaluate, case["dtype"], impl)

    explore(attentions, check, examples)
