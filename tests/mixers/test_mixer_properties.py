"""Random mixers: the whole sequence, any chunks of it and single tokens give the same, and so
does a sentence without its padding."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_convattn.mixers import MixerConfig, build_mixer
from fairseq_convattn.ops import TAP_NORMALIZATIONS
from fairseq_convattn.ops.attention import TERMS
from fairseq_convattn.ops.attention.terms import BEYOND
from fairseq_convattn.ops.taps import RENORMALIZABLE

flag = st.booleans()
PROJECTIONS = st.sampled_from(["linear", "lightweight", "dynamic", "separable"])
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
    "short_convolution_on": st.sampled_from(["q", "kv", "qkvo"]),
    "short_convolution_taps": st.integers(1, 6),
    "short_convolution_rank": st.integers(1, 3),
}
composite = st.fixed_dictionaries(
    {
        "mixer": st.sampled_from(["composite", "composite", "tisa"]),
        "attention_terms": st.lists(st.sampled_from(sorted(TERMS)), min_size=1, unique=True).map(
            tuple
        ),
        "attention_span": st.integers(1, 8),
        "beyond_span": st.sampled_from(BEYOND),
        "share_tables_across_heads": st.sampled_from([None, True, False]),
        "query_key_projection": PROJECTIONS,
        "value_projection": PROJECTIONS,
        "convolved_heads": st.sampled_from(["all", "half"]),
        "projection_kernel_size": st.sampled_from([1, 3, 4, 7]),
        "value_conv": st.sampled_from(["none", "depthwise", "scaled"]),
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
    }
)


def built(options):
    """In float64, with parameters that are nowhere zero."""
    options = dict(options)
    if options.get("tap_norm") not in (None, *RENORMALIZABLE):
        options["renorm_padding"] = False
    module = build_mixer(MixerConfig(embed_dim=8, num_heads=4, causal=True, **options))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


@torch.no_grad()
def check(options, case):
    torch.manual_seed(case["seed"])
    module, time = built(options), sum(case["sizes"])
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
    for found in (pieces(case["sizes"]), pieces([1] * time), pieces(case["sizes"], shuffled=True)):
        torch.testing.assert_close(found[real], whole[real], rtol=0, atol=1e-9)


@pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_chunks_and_tokens_agree(family, examples):
    options = {"max_examples": examples, "deadline": None, "database": None, "derandomize": True}
    options["suppress_health_check"] = list(HealthCheck)
    settings(**options)(given(FAMILIES[family], cases)(check))()
