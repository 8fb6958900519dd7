"""Composite attention's mixer: every combination of its parts decodes what training saw."""

import itertools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from fairseq_convattn.mixers import MixerConfig, build_mixer
from fairseq_convattn.ops import composite_attention
from fairseq_convattn.ops.attention import TERMS

WIDTH, HEADS, BATCH, SPAN, TIME = 8, 2, 2, 2, 7
SUBSETS = [c for n in range(1, len(TERMS) + 1) for c in itertools.combinations(TERMS, n)]
PAIRS = [terms for terms in SUBSETS if len(terms) in (1, 2, len(TERMS))]


def mixer(causal=True, mixer="composite", **options):
    torch.manual_seed(7)
    options = {"attention_span": SPAN, "projection_kernel_size": 3, **options}
    config = MixerConfig(mixer, WIDTH, HEADS, causal, **options)
    module = build_mixer(config).eval()
    for parameter in module.parameters():  # zeros at first would hide errors
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def run(module, x, padding_mask=None, state=None):
    return module(x, x, x, key_padding_mask=padding_mask, incremental_state=state)[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("terms", PAIRS, ids=",".join)
def test_every_parameter_gets_a_gradient(terms, causal):
    """As data-parallel training demands: there is no projection that no term needs."""
    options = {"value_projection": "separable", "value_conv": "scaled"}
    module = mixer(causal, attention_terms=terms, **options).train()
    run(module, torch.randn(TIME, BATCH, WIDTH)).pow(2).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def by_heads(x):
    return x.unflatten(-1, (HEADS, -1)).permute(1, 2, 0, 3)


def expected(module, q, k, v, extra=0):
    """The operation on given projections ``[time, batch, width]``."""
    y = composite_attention(
        by_heads(q), by_heads(k), by_heads(v), module.terms(q.device), causal=module.config.causal
    )
    return module.out_proj(y.permute(2, 0, 1, 3).flatten(2) + extra)


def depthwise(x, taps, causal):
    """The definition: every channel's window times its kernel."""
    size = taps.size(1)
    left = size - 1 if causal else size // 2
    windows = F.pad(x, (0, 0, 0, 0, left, size - 1 - left)).unfold(0, size, 1)
    return (windows * taps).sum(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", ["all", "half"])
def test_what_projections_are(heads, causal):
    x = torch.randn(TIME, BATCH, WIDTH)
    half = slice(WIDTH // (2 if heads == "half" else 1))

    def mixed(convolved, linear):
        return torch.cat([convolved[..., half], linear[..., half.stop :]], dim=-1)

    for kind, activation in (
        ("separable", F.gelu),
        ("lightweight", F.relu),
        ("dynamic", torch.tanh),
    ):
        name = {F.gelu: "gelu", F.relu: "relu", torch.tanh: "tanh"}[activation]
        module = mixer(
            causal,
            query_key_projection=kind,
            value_projection=kind,
            projection_activation=name,
            convolved_heads=heads,
        )

        def projected(linear, conv, kind=kind, activation=activation):
            if kind == "separable":
                y = linear(activation(depthwise(x, conv.taps, causal) + conv.bias))
                return mixed(y, linear(x))
            y = linear(x)
            repeats = WIDTH // HEADS
            if kind == "lightweight":
                taps = conv.kernel.softmax(-1).repeat_interleave(repeats, 0)
                return mixed(activation(depthwise(y[..., half], taps, causal)), y)
            taps = conv.kernel_proj(y[..., half]).unflatten(-1, (-1, 3)).softmax(-1)
            left = 2 if causal else 1
            windows = F.pad(y[..., half], (0, 0, 0, 0, left, 2 - left)).unfold(0, 3, 1)
            return mixed(activation((windows * taps.repeat_interleave(repeats, 2)).sum(-1)), y)

        q, k, v = (
            projected(getattr(module, f"{name}_proj"), getattr(module, f"{name}_conv"))
            for name in "qkv"
        )
        torch.testing.assert_close(run(module, x), expected(module, q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_added_to_the_output(causal):
    x = torch.randn(TIME, BATCH, WIDTH)
    for kind in ("depthwise", "scaled"):
        module = mixer(causal, value_conv=kind)
        q, k, v = module.q_proj(x), module.k_proj(x), module.v_proj(x)
        conv = module.value_conv
        local = depthwise(v, conv.taps, causal) + conv.bias
        if kind == "scaled":
            local = local * conv.scale.repeat_interleave(WIDTH // HEADS, 0).squeeze(1)
        torch.testing.assert_close(run(module, x), expected(module, q, k, v, local))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_depthwise_convolutions(causal):
    """First and second ones, and in bfloat16 sums, without the bias, that are rounded once."""
    conv = mixer(causal, value_conv="scaled").value_conv.double()
    v = torch.randn(5, BATCH, WIDTH, dtype=torch.float64, requires_grad=True)
    inputs = (v, *(p.detach().requires_grad_() for p in conv.parameters()))

    def convolved(v, *parameters):
        names = (name for name, _ in conv.named_parameters())
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(conv, given, (v, None, None))

    assert torch.autograd.gradcheck(convolved, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(convolved, inputs, fast_mode=True)

    conv = mixer(causal, value_conv="depthwise").value_conv.bfloat16()
    torch.nn.init.zeros_(conv.bias)
    v = torch.randn(400, BATCH, WIDTH).bfloat16().requires_grad_()
    y = conv(v, None, None)
    actual = (y, *torch.autograd.grad(y.sum(), (v, *conv.parameters())))
    v = v.detach().double().requires_grad_()
    y = conv.double()(v, None, None)
    expected = (y, *torch.autograd.grad(y.sum(), (v, *conv.parameters())))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e.bfloat16())


def test_kerples_parameters_start_as_in_its_code():
    """p uniform within 2, a within 1 (Chi et al. 2022, ParallelKerpleLog)."""
    torch.manual_seed(3)
    config = MixerConfig("composite", 512, 512, True, attention_terms=("content", "kerple"))
    terms = build_mixer(config).terms
    for parameter, most in ((terms.kerple_scale, 2), (terms.kerple_rate, 1)):
        assert 0 <= parameter.min() < 0.1 * most and 0.9 * most < parameter.max() <= most


def test_the_separable_projection_starts_as_conv1d():
    torch.manual_seed(3)
    config = MixerConfig("composite", 512, 8, True, value_projection="separable")
    conv, bound = build_mixer(config).v_conv, config.projection_taps**-0.5
    for parameter in (conv.taps, conv.bias):
        assert 0.9 * bound < parameter.abs().max() <= bound


@pytest.mark.parametrize("causal, taps", [(False, 2 * SPAN + 1), (True, SPAN + 1)])
def test_shapes_of_the_tables(causal, taps):
    head = WIDTH // HEADS

    def shapes(**options):
        terms = mixer(causal, attention_terms=tuple(TERMS), tisa_kernels=4, **options).terms
        return {name: tuple(p.shape) for name, p in terms.named_parameters()}

    papers = shapes()
    assert papers["query"] == papers["key"] == (1, taps, head)
    assert papers["fixed"] == (HEADS, taps)
    assert papers["tisa_center"] == papers["tisa_sharpness"] == (HEADS, 4)
    assert papers["key_only"] == (HEADS, head)
    assert {shape[0] for shape in shapes(share_tables_across_heads=True).values()} == {1}
    assert {shape[0] for shape in shapes(share_tables_across_heads=False).values()} == {HEADS}


def test_initial_values():
    torch.manual_seed(3)
    config = MixerConfig("composite", 512, 64, False, attention_terms=tuple(TERMS), tisa_kernels=40)
    terms = build_mixer(config).terms
    assert terms.fixed.eq(0).all() and terms.key_only.eq(0).all()
    bound = (2 * config.attention_span + 1) ** -0.5
    for table in (terms.query, terms.key):
        assert 0.9 * bound < table.abs().max() <= bound
    for x, mean, std in (
        (terms.tisa_center, 0, 5),
        (terms.tisa_amplitude, 0.1, 0.01),
        (terms.tisa_sharpness, 0.1, 0.01),
    ):
        assert x.mean().item() == pytest.approx(mean, abs=0.1 * std)
        assert x.std().item() == pytest.approx(std, rel=0.1)


def test_a_causal_tisa_looks_back_at_first():
    torch.manual_seed(3)
    terms = build_mixer(MixerConfig("tisa", 64, 8, True, tisa_kernels=40)).terms
    assert terms.tisa_center.le(0).all()
    assert terms.tisa_center.square().mean().sqrt().item() == pytest.approx(5, rel=0.1)


@pytest.mark.parametrize("terms", ["content,fixed,query", "tisa"])
def test_attention_dropout_only_in_training(terms):
    chosen = {"attention_terms": tuple(terms.split(","))}
    x = torch.randn(TIME, BATCH, WIDTH)
    kept, dropped = mixer(**chosen), mixer(attention_dropout=0.5, **chosen)
    whole = run(kept, x)
    torch.testing.assert_close(run(dropped, x), whole)
    torch.testing.assert_close(run(kept.train(), x), whole)
    assert not torch.allclose(run(dropped.train(), x), whole, atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("terms", ["content,tisa", "content", "alibi", "content,fixed"])
def test_a_window_ends_at_the_span_with_or_without_a_table(terms, causal):
    module = mixer(causal, attention_terms=tuple(terms.split(",")), beyond_span="mask")
    x = torch.randn(TIME, 1, WIDTH)
    seen = torch.autograd.functional.jacobian(lambda x: run(module, x).sum((1, 2)), x)
    distances = torch.arange(TIME) - torch.arange(TIME).unsqueeze(1)
    window = (distances >= -SPAN) & (distances <= (0 if causal else SPAN))
    assert torch.equal(seen.abs().sum((2, 3)) > 0, window)


def test_projections_start_as_those_of_attention():
    spread = Counter()
    for name in ("attention", "composite"):
        torch.manual_seed(4)
        module = build_mixer(MixerConfig(name, 256, 4, False))
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            spread[projection, name] = getattr(module, projection).weight.std().item()
            assert getattr(module, projection).weight.abs().max() < 0.16
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        ratio = spread[projection, "composite"] / spread[projection, "attention"]
        assert ratio == pytest.approx(1, abs=0.02)


def test_tisa_is_composite_attention_with_content_and_tisa():
    tisa = mixer(mixer="tisa")
    composite = mixer(attention_terms=("content", "tisa"))
    composite.load_state_dict(tisa.state_dict())
    x = torch.randn(TIME, BATCH, WIDTH)
    torch.testing.assert_close(run(tisa, x), run(composite, x))


def test_keys_that_are_values_are_kept_once():
    module, state = mixer(attention_terms=("fixed",)), {}
    x = torch.randn(3, BATCH, WIDTH)
    with torch.no_grad():
        whole = run(module, x)
        run(module, x[:2], state=state)
        module.reorder_incremental_state(state, torch.arange(BATCH).flip(0))
        last = run(module, x[2:].flip(1), state=state)
    (cache,) = (value for name, value in state.items() if name.endswith("attn_state"))
    assert cache["prev_key"] is cache["prev_value"]
    torch.testing.assert_close(last.flip(1), whole[2:])


@pytest.mark.parametrize("terms", ["fixed", "content,query"])
def test_a_window_keeps_no_more_than_it_can_see(terms):
    module, state = mixer(attention_terms=tuple(terms.split(",")), beyond_span="mask"), {}
    x = torch.randn(20, BATCH, WIDTH)
    with torch.no_grad():
        whole, steps = run(module, x), []
        for i in range(20):
            steps.append(run(module, x[i : i + 1], state=state))
            (cache,) = (value for name, value in state.items() if name.endswith("attn_state"))
            assert cache["prev_key"].size(2) == cache["prev_value"].size(2) == min(i + 1, SPAN)
    torch.testing.assert_close(torch.cat(steps), whole)
