"""Attention that trains in bfloat16 on a CPU with AMX, beside the same training in float32."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fairseq_convattn.mixers import CrossAttention, MixerConfig, build_mixer
from fairseq_convattn.ops import use_implementation
from fairseq_convattn.ops.attention import native_bfloat16
from fairseq_convattn.ops.native import has_amx

pytestmark = pytest.mark.skipif(not has_amx(), reason="needs compiled kernels and a CPU with AMX")

WIDTH, HEADS, SENTENCES = 32, 4, 3


@pytest.fixture
def calls(monkeypatch):
    counted, run = [], native_bfloat16.attention
    monkeypatch.setattr(
        native_bfloat16, "attention", lambda *x, **options: counted.append(x) or run(*x, **options)
    )
    return counted


def self_attention(causal):
    return build_mixer(MixerConfig("attention", WIDTH, HEADS, causal=causal))


def padding_of(keys):
    padding_mask = torch.zeros(SENTENCES, keys, dtype=torch.bool)
    padding_mask[0, :2], padding_mask[1, keys - 3 :] = True, True
    return padding_mask


def results(module, inputs, call):
    inputs = [x.detach().requires_grad_() for x in inputs]
    y = call(module, *inputs)
    weights = [x for x in module.parameters() if x.dim() == 2]  # a key's bias has no gradient
    return y, *torch.autograd.grad(y.float().square().sum(), [*inputs, *weights])


def agrees(module, inputs, call):
    inputs = [x.bfloat16() for x in inputs]
    half = copy.deepcopy(module).bfloat16()
    wide = copy.deepcopy(half).float()
    expected = results(wide, [x.float() for x in inputs], call)
    for actual, e in zip(results(half, inputs, call), expected, strict=True):
        scale = e.abs().max().clamp(min=1e-2)
        torch.testing.assert_close(actual.float() / scale, e / scale, rtol=0, atol=0.03)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_self_attention(calls, causal, padded):
    torch.manual_seed(1)
    mask = padding_of(20) if padded else None
    x = torch.randn(20, SENTENCES, WIDTH)
    agrees(self_attention(causal), [x], lambda module, x: module(x, x, x, mask)[0])
    assert len(calls) == 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("time", [5, 40])
def test_cross_attention(calls, padded, time):
    torch.manual_seed(2)
    mask = padding_of(20) if padded else None
    module = CrossAttention(WIDTH, HEADS, encoder_decoder_attention=True)

    def call(module, query, source):
        return module(query, source, source, mask, static_kv=True, need_weights=False)[0]

    agrees(module, [torch.randn(n, SENTENCES, WIDTH) for n in (time, 20)], call)
    assert len(calls) == 1


def test_not_where_it_would_not_pay_or_is_not_wanted(calls):
    module, x = self_attention(True).bfloat16(), torch.randn(20, SENTENCES, WIDTH).bfloat16()
    module.eval()(x, x, x)
    module.train()
    with use_implementation("reference"):
        module(x, x, x)
    module(*[x[:4]] * 3)
    assert not calls


@pytest.mark.slow
def test_in_a_compiled_function(calls):
    torch.manual_seed(3)
    module = self_attention(True).bfloat16()
    compiled = torch.compile(lambda x: module(x)[0], fullgraph=True, backend="aot_eager")
    for time in (20, 33):
        x = torch.randn(time, SENTENCES, WIDTH).bfloat16().requires_grad_()
        (expected,), (actual,) = (
            torch.autograd.grad(call(x).float().square().sum(), x)
            for call in (lambda x: module(x)[0], compiled)
        )
        assert torch.equal(actual, expected)
    assert calls


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    torch.manual_seed(4)
    module = self_attention(True).bfloat16()
    x = torch.randn(20, SENTENCES, WIDTH).bfloat16().requires_grad_()
    plain = module(x)[0]
    again = checkpoint(lambda x: module(x)[0], x, use_reentrant=reentrant)
    assert torch.equal(again, plain)
    for y in (plain, again):
        y.float().square().sum().backward()
    assert torch.isfinite(x.grad).all()
