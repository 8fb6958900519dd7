"""Random mixers: the whole sequence, any chunks of it and single tokens give the same, and so
does a sentence without its padding."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_convattn.mixers import MixerConfig, build_mixer
from fairseq_convattn.mixers.conditions import PROJECTION_TERMS
from fairseq_convattn.mixers.config import PROJECTIONS, VALUE_CONVOLUTIONS
from fairseq_convattn.ops import TAP_NORMALIZATIONS
from fairseq_convattn.ops.attention import TERMS
from fairseq_convattn.ops.attention.terms import BEYOND
from fairseq_convattn.ops.taps import RENORMALIZABLE

flag = st.booleans()
INJECTIONS = {
    "query_key_projection": PROJECTIONS,
    "value_projection": PROJECTIONS,
    "convolved_heads": ("all", "half"),
    "value_conv": VALUE_CONVOLUTIONS,
}


def subsets(names):
    """All but the empty one."""
    return [c for n in range(1, len(names) + 1) for c in itertools.combinations(names, n)]


SUBSETS = subsets(TERMS)
CONVOLVED = ["".join(letters) for letters in subsets("qkvo")]
convolution = st.fixed_dictionaries(
    {
        "mixer": st.sampled_from(["lightweight", "dynamic"]),
        "kernel_size": st.integers(1, 12),
        "conv_dim": st.sampled_from([None, 4, 8, 24]),
        "glu": flag,
        "conv_bias": flag,
        "tap_norm": st.sampled_from(sorted(TAP_NORMALIZATIONS)),
        "renorm_padding": flag,
    }
)
short_convolutions = {
    "short_convolution": st.sampled_from(["none", "static", "headwise", "low_rank"]),
    "short_convolution_on": st.sampled_from(CONVOLVED),
    "short_convolution_taps": st.integers(1, 6),
    "short_convolution_rank": st.integers(1, 3),
}
composite = st.fixed_dictionaries(
    {
        "mixer": st.just("composite"),
        "attention_terms": st.lists(st.sampled_from(sorted(TERMS)), min_size=1, unique=True).map(
            tuple
        ),
        "attention_span": st.integers(1, 8),
        "beyond_span": st.sampled_from(BEYOND),
        "share_tables_across_heads": st.sampled_from([None, True, False]),
        "projection_kernel_size": st.sampled_from([1, 3, 7]),
        **{name: st.sampled_from(sorted(values)) for name, values in INJECTIONS.items()},
        **short_convolutions,
    }
)
attention = st.fixed_dictionaries({"mixer": st.just("attention"), **short_convolutions})
FAMILIES = {
    "convolution": convolution,
    "composite": composite,
    "attention": attention,
}
cases = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 9), min_size=1, max_size=9),
        "batch": st.integers(1, 3),
        "padding": st.sampled_from(["none", "left", "right"]),
        "seed": st.integers(0, 999),
        "causal": st.sampled_from([True, True, False]),
    }
)
CASE = {"sizes": [3, 1, 3], "batch": 2, "padding": "left", "seed": 7}


def built(options, causal):
    """In float64, with parameters that are nowhere zero."""
    options = dict(options)
    if options.get("tap_norm") not in (None, *RENORMALIZABLE):
        options["renorm_padding"] = False
    if options["mixer"] == "composite":
        terms, letters = options.get("attention_terms"), options.get("short_convolution_on", "")
        unread = {x for x, of in PROJECTION_TERMS.items() if terms and of.isdisjoint(terms)}
        options["short_convolution_on"] = "".join(x for x in letters if x not in unread) or "v"
    module = build_mixer(MixerConfig(embed_dim=8, num_heads=4, causal=causal, **options))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


@torch.no_grad()
def check(options, case):
    torch.manual_seed(case["seed"])
    module, time = built(options, case["causal"]), sum(case["sizes"])
    x, mask = torch.randn(time, case["batch"], 8, dtype=torch.float64), None
    if case["padding"] != "none":
        mask = torch.zeros(case["batch"], time, dtype=torch.bool)
        here = slice(time // 3) if case["padding"] == "left" else slice(time - time // 3, time)
        mask[0, here] = True

    def pieces(sizes, shuffled=False):
        state, found, begin, places = {}, [], 0, torch.arange(case["batch"])
        for size in sizes:
            steps = slice(begin, begin + size)
            seen = None if mask is None else mask[places, steps]
            y, _ = module(x[steps, places], key_padding_mask=seen, incremental_state=state)
            found.append(y[:, places.argsort()])
            begin += size
            if shuffled:
                order = torch.randperm(case["batch"])
                module.reorder_incremental_state(state, order)
                places = places[order]
        return torch.cat(found)

    real = torch.ones(time, case["batch"], dtype=torch.bool) if mask is None else ~mask.T
    whole, _ = module(x, key_padding_mask=mask)
    alone, _ = module(x[real[:, 0], :1])
    torch.testing.assert_close(whole[real[:, 0], :1], alone, rtol=0, atol=1e-9)
    if not case["causal"]:
        return
    for found in (pieces(case["sizes"]), pieces([1] * time), pieces(case["sizes"], shuffled=True)):
        torch.testing.assert_close(found[real], whole[real], rtol=0, atol=1e-9)


@pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_chunks_and_tokens_agree(family, examples):
    options = {"max_examples": examples, "deadline": None, "database": None, "derandomize": True}
    options["suppress_health_check"] = list(HealthCheck)
    settings(**options)(given(FAMILIES[family], cases)(check))()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("beyond", BEYOND)
def test_pairs_of_terms(beyond, causal):
    for terms in (subset for subset in SUBSETS if len(subset) in (1, 2, len(TERMS))):
        options = {"mixer": "composite", "attention_terms": terms, "beyond_span": beyond}
        check({**options, "attention_span": 2}, CASE | {"causal": causal})


@pytest.mark.slow
@pytest.mark.parametrize("first", range(32))
def test_all_terms_with_all_injections(first):
    for terms, beyond, *parts in itertools.product(
        SUBSETS[first::32], BEYOND, *INJECTIONS.values()
    ):
        options = {"mixer": "composite", "attention_terms": terms, "beyond_span": beyond}
        options |= {"attention_span": 2, "projection_kernel_size": 3}
        check({**options, **dict(zip(INJECTIONS, parts, strict=True))}, CASE | {"causal": True})
