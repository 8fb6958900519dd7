"""Attention to an encoder: fairseq's, computed otherwise."""

import pytest
import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention

from fairseq_convattn.mixers import (
    CrossAttention,
    MixerConfig,
    attention,
    build_mixer,
    cross_attention,
)

EMBED, SOURCE, HEADS, KEYS, SENTENCES = 8, 6, 2, 7, 3


def pair():
    torch.manual_seed(1)
    options = {"kdim": SOURCE, "vdim": SOURCE, "encoder_decoder_attention": True}
    modules = [kind(EMBED, HEADS, **options) for kind in (MultiheadAttention, CrossAttention)]
    modules[1].load_state_dict(modules[0].state_dict())
    return modules


def inputs(time, beams=1):
    query = torch.randn(time, SENTENCES * beams, EMBED, requires_grad=True)
    source = torch.randn(KEYS, SENTENCES, SOURCE, requires_grad=True)
    padding = torch.zeros(SENTENCES, KEYS, dtype=torch.bool)
    padding[0, :2], padding[1, 5:] = True, True
    return (
        query,
        source.repeat_interleave(beams, dim=1),
        padding.repeat_interleave(beams, dim=0),
    )


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_trains_as_fairseqs(need_weights, padded):
    query, source, padding = inputs(5)
    results = []
    for module in pair():
        y, weights = module(
            query,
            source,
            source,
            key_padding_mask=padding if padded else None,
            static_kv=True,
            need_weights=need_weights,
        )
        loss = y.square().sum() + (weights.square().sum() if need_weights else 0)
        wanted = [query, source, *module.parameters()]
        results.append((y, weights, *torch.autograd.grad(loss, wanted)))
    for expected, actual in zip(*results, strict=True):
        if expected is not None and (expected.dim() != 3 or need_weights):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert results[1][1] is None or need_weights


@torch.no_grad()
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("beams", [1, 4])
def test_decodes_as_fairseqs(beams, need_weights):
    results = []
    for module in pair():
        module.eval()
        module.set_beam_size(beams)
        torch.manual_seed(2)
        _, source, padding = inputs(1, beams)
        state, outputs = {}, []
        order = torch.arange(SENTENCES * beams)
        for step in range(4):
            query = torch.randn(1, SENTENCES * beams, EMBED)
            if step == 2:  # the second sentence is done
                order = torch.cat([order[:beams], order[2 * beams :].flip(0)])
            if step:
                module.reorder_incremental_state(state, order[: query.size(1)])
            query = query[:, : len(order)]
            many = {"incremental_state": state, "static_kv": True, "need_weights": need_weights}
            y, weights = module(query, source, source, key_padding_mask=padding, **many)
            outputs += [y] + [weights] * need_weights
            order = torch.arange(len(order)).view(-1, beams).flip(1).flatten()
            source, padding = source[:, : len(order)], padding[: len(order)]
        results.append(outputs)
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("heads", [False, True])
def test_training_after_a_beam_search(heads):
    """A beam size that the generator has left behind does not mix sentences."""
    query, source, padding = inputs(5)
    _, module = pair()
    options = {"key_padding_mask": padding, "static_kv": True, "need_head_weights": heads}
    expected = module(query, source, source, **options)
    module.set_beam_size(3)
    for a, e in zip(module(query, source, source, **options), expected, strict=True):
        torch.testing.assert_close(a, e)


def test_a_source_of_padding_gives_zeros():
    query, source, padding = inputs(5)
    padding[0] = True
    _, module = pair()
    for need_weights in (False, True):
        y, _ = module(
            *(query, source, source),
            **{"key_padding_mask": padding, "static_kv": True, "need_weights": need_weights},
        )
        torch.testing.assert_close(y[:, 0], module.out_proj.bias.expand(5, -1))
        assert torch.autograd.grad(y.sum(), query)[0].isfinite().all()


@pytest.mark.parametrize("need_weights", [False, True])
def test_all_can_be_dropped(need_weights):
    query, source, _ = inputs(5)
    module = CrossAttention(EMBED, HEADS, kdim=SOURCE, vdim=SOURCE, dropout=1.0)
    y, _ = module(query, source, source, static_kv=True, need_weights=need_weights)
    torch.testing.assert_close(y, module.out_proj.bias.expand_as(y))


@torch.no_grad()
def test_weights_of_float64_stay_in_it():
    query, source, _ = (x.double() for x in inputs(5))
    module = pair()[1].double()
    outputs, weights = module(query, source, source, static_kv=True, need_weights=True)
    fused, _ = module(query, source, source, static_kv=True, need_weights=False)
    torch.testing.assert_close(outputs, fused, rtol=0, atol=1e-14)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@torch.no_grad()
def test_weights_of_every_head_are_fairseqs():
    query, source, padding = inputs(5)
    options = {"key_padding_mask": padding, "static_kv": True, "need_head_weights": True}
    expected, actual = (m.eval()(query, source, source, **options) for m in pair())
    torch.testing.assert_close(actual, expected)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "beam_size, beams, orders",
    [(3, 1, ([0, 1, 2], [0, 2], [1, 0])), (2, 2, (range(6), [0, 4, 3, 1]))],
    ids=["a beam size of before", "hypotheses that leave their sentences"],
)
def test_any_new_order_is_right(beam_size, beams, orders, padded):
    """As without beams."""
    _, module = pair()
    module.eval()
    results = []
    for size in (1, beam_size):
        module.set_beam_size(size)
        torch.manual_seed(3)
        query, source, padding = inputs(1, beams)
        state, outputs = {}, []
        options = {"static_kv": True, "incremental_state": state}
        for order in map(torch.tensor, map(list, orders)):
            module.reorder_incremental_state(state, order)
            query, source, padding = query[:, order], source[:, order], padding[order]
            options["key_padding_mask"] = padding if padded else None
            outputs.append(module(query, source, source, **options)[0])
        results.append(outputs)
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


class OnGPU(torch.Tensor):
    is_cuda = True


def test_masks_rule_out_cudnns_kernel(monkeypatch):
    """Its gradients can be NaN: pytorch/pytorch#196678."""
    allowed = []

    def recorded(q, k, v, *_):
        cuda = torch.backends.cuda
        allowed.append((cuda.cudnn_sdp_enabled(), cuda.mem_efficient_sdp_enabled()))
        return v

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    x = torch.zeros(1, 1, 2, 2).as_subclass(OnGPU)
    for mask in (None, torch.ones(2, 2, dtype=torch.bool)):
        attention.attend(x, x, x, mask, 0.0)
    assert allowed == [(True, True), (False, True)]


@pytest.mark.parametrize("causal", [False, True])
def test_mixers_attend_with_their_masks(causal, monkeypatch):
    masks = []

    def recorded(q, k, v, mask, dropout, is_causal=False):
        masks.append(mask)
        return q

    for module in (attention, cross_attention):
        monkeypatch.setattr(module, "attend", recorded)
    query, _, padding = inputs(KEYS)
    config = MixerConfig("attention", embed_dim=EMBED, num_heads=HEADS, causal=causal)
    build_mixer(config)(query, query, query, key_padding_mask=padding)
    CrossAttention(EMBED, HEADS, encoder_decoder_attention=True)(
        query, query, query, key_padding_mask=padding, static_kv=True, need_weights=False
    )
    for mask in masks:
        assert not mask[..., 0, :].masked_select(padding[:, None]).any()
    assert len(masks) == 2
