"""One definition, three executions; padding; beam search; fairseq's own modules."""

import copy
import itertools
import pickle

import pytest
import torch
from fairseq.modules import MultiheadAttention
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC

from fairseq_convattn.mixers import MixerConfig, build_mixer
from fairseq_convattn.mixers.attention import LONG
from fairseq_convattn.ops import TAP_NORMALIZATIONS
from fairseq_convattn.ops.attention import TERMS

WIDTH, HEADS, BATCH = 12, 3, 2
LENGTHS = [1, 2, 5, 33]
VARIANTS = {
    "lightweight": {},
    "lightweight-no-glu": {"glu": False},
    "lightweight-renorm": {"renorm_padding": True},
    "dynamic": {},
    "dynamic-bias": {"conv_bias": True, "conv_dim": 6},
    "dynamic-renorm": {"renorm_padding": True},
    **{f"dynamic-{norm}": {"tap_norm": norm} for norm in TAP_NORMALIZATIONS},
    "attention": {},
    "composite": {"attention_terms": tuple(TERMS), "attention_span": 3},
    "composite-injected": {
        "query_key_projection": "dynamic",
        "value_projection": "separable",
        "projection_kernel_size": 5,
        "projection_activation": "gelu",
        "value_conv": "scaled",
    },
    "tisa": {},
    "attention-static": {"short_convolution": "static", "short_convolution_on": "qkvo"},
    "attention-headwise": {"short_convolution": "headwise", "short_convolution_window": "causal"},
    "attention-low-rank": {"short_convolution": "low_rank", "short_convolution_taps": 5},
    "composite-low-rank": {"short_convolution": "low_rank", "short_convolution_on": "kvo"},
    "composite-window": {"short_convolution": "static", "beyond_span": "mask", "attention_span": 2},
    "tisa-headwise": {"short_convolution": "headwise", "short_convolution_on": "qo"},
}
CONVOLUTIONS = [name for name in VARIANTS if name.startswith(("lightweight", "dynamic"))]


def mixer(variant, causal, kernel_size=4, **options):
    torch.manual_seed(7)
    config = MixerConfig(
        mixer=variant.partition("-")[0],
        embed_dim=WIDTH,
        num_heads=HEADS,
        causal=causal,
        kernel_size=kernel_size,
        **{**VARIANTS[variant], **options},
    )
    module = build_mixer(config).eval()
    for parameter in module.parameters():  # biases start at zero and would hide errors
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def run(module, x, padding_mask=None, state=None):
    y, weights = module(x, x, x, key_padding_mask=padding_mask, incremental_state=state)
    assert weights is None
    return y


@torch.no_grad()
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("variant", ["dynamic", "attention", "composite"])
def test_copies_remember_a_sequence_of_their_own(variant, copied):
    first = mixer(variant, causal=True)
    second, x, state = copied(first), torch.randn(6, BATCH, WIDTH), {}
    steps = [run(second, run(first, x[i : i + 1], state=state), state=state) for i in range(6)]
    torch.testing.assert_close(torch.cat(steps), run(second, run(first, x)), rtol=0, atol=1e-5)


def in_chunks(module, x, sizes, padding_mask=None):
    state, pieces, start = {}, [], 0
    for size in filter(None, sizes):
        steps = slice(start, start + size)
        mask = None if padding_mask is None else padding_mask[:, steps]
        pieces.append(run(module, x[steps], mask, state))
        start += size
    return torch.cat(pieces)


@pytest.mark.parametrize(
    "variant, kernel_size",
    [*((variant, 4) for variant in VARIANTS),
     *itertools.product(("lightweight", "dynamic-renorm"), (1, 3, 31))],
)  # fmt: skip
def test_whole_step_by_step_and_chunked_agree(variant, kernel_size):
    module = mixer(variant, causal=True, kernel_size=kernel_size)
    for time in LENGTHS:
        x = torch.randn(time, BATCH, WIDTH)
        whole = run(module, x)
        chunks = [5] * (time // 5) + [time % 5] * (time % 5 > 0)
        for sizes in ([1] * time, chunks, [(time + 1) // 2, time // 2]):
            torch.testing.assert_close(in_chunks(module, x, sizes), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("left", [False, True], ids=["right-padded", "left-padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sentence_does_not_see_its_padding(variant, causal, left):
    """Nor does its gradient, or that of a parameter."""
    module = mixer(variant, causal, kernel_size=5)
    sentence, grad = torch.randn(7, 1, WIDTH, requires_grad=True), torch.randn(7, 1, WIDTH)
    alone, parameters = run(module, sentence), tuple(module.parameters())
    expected = torch.autograd.grad(alone, (sentence, *parameters), grad)
    for padding in (1, 7):
        x = torch.full((7 + padding, 2, WIDTH), 1e3)
        mask = torch.zeros(2, 7 + padding, dtype=torch.bool)
        here = slice(padding, None) if left else slice(7)
        mask[0], mask[0, here] = True, False
        x[here, 0] = sentence[:, 0].detach()
        y = run(module, x.requires_grad_(), mask)
        assert torch.equal(run(module, x, mask.byte()), y)
        torch.testing.assert_close(y[here, :1], alone, rtol=0, atol=1e-5)
        assert y.isfinite().all()
        of_x, *actual = torch.autograd.grad(y[here, :1], (x, *parameters), grad)
        assert not of_x[:, 1].any() and not of_x[mask.t()].any()
        for a, e in zip((of_x[here, :1], *actual), expected, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)
        if causal:
            x = x.detach()
            steps = in_chunks(module, x, [1] * x.size(0), mask)
            torch.testing.assert_close(steps[here, :1], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_beams_swap_their_states(variant):
    module = mixer(variant, causal=True, kernel_size=6)
    x = torch.randn(9, 4, WIDTH)
    order = torch.tensor([2, 0, 0, 3])
    expected = run(module, torch.cat([x[:6, order], x[6:]]))
    state = {}
    before = run(module, x[:6], state=state)
    module.reorder_incremental_state(state, order)
    after = run(module, x[6:], state=state)
    torch.testing.assert_close(before[:, order], expected[:6], rtol=0, atol=1e-5)
    torch.testing.assert_close(after, expected[6:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", ["lightweight-renorm", "dynamic-renorm"])
@pytest.mark.parametrize("causal", [False, True])
def test_renormalised_kernels_average_at_the_edges_too(variant, causal):
    """A constant input comes out unchanged only if every kernel sums to one on it."""
    module = mixer(variant, causal, kernel_size=31, glu=False)
    for linear in (module.in_proj, module.out_proj):
        torch.nn.init.eye_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    x = torch.ones(5, BATCH, WIDTH)
    torch.testing.assert_close(run(module, x), x)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel_size, time", [(3, 1), (3, 20), (7, 8), (31, 40)])
def test_fairseqs_convolutions_give_the_same(kernel_size, time, causal):
    """At time >= kernel_size; below, fairseq's causal dynamic convolution is wrong."""
    left = kernel_size - 1 if causal else kernel_size // 2
    x = torch.randn(time, BATCH, WIDTH)
    ours = mixer("lightweight-no-glu", causal, kernel_size)
    theirs = LightweightConv1dTBC(WIDTH, kernel_size, left, HEADS, weight_softmax=True)
    theirs.weight.data.copy_(ours.kernel.unsqueeze(1))
    torch.testing.assert_close(run(ours, x), ours.out_proj(theirs(ours.in_proj(x))))

    ours = mixer("dynamic", causal, kernel_size, glu=False)
    theirs = DynamicConv1dTBC(WIDTH, kernel_size, left, HEADS, weight_softmax=True)
    theirs.weight_linear.weight.data.copy_(ours.kernel_proj.weight)
    torch.testing.assert_close(run(ours, x), ours.out_proj(theirs(ours.in_proj(x), unfold=False)))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_fairseqs(causal):
    ours = mixer("attention", causal)
    theirs = MultiheadAttention(WIDTH, HEADS, self_attention=True).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(9, BATCH, WIDTH)
    padding = torch.zeros(BATCH, 9, dtype=torch.bool)
    padding[0, -3:] = True
    mask = torch.full((9, 9), float("-inf")).triu(1) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=padding, attn_mask=mask)
    y = run(ours, x, padding)
    torch.testing.assert_close(y[:, 1], expected[:, 1])
    torch.testing.assert_close(y[:6, 0], expected[:6, 0])


@pytest.mark.parametrize("time", [LONG - 1, LONG])
@pytest.mark.parametrize("causal, padded", list(itertools.product((False, True), repeat=2)))
def test_attention_dropout_only_in_training(causal, padded, time):
    x, mask = torch.randn(time, BATCH, WIDTH), None
    if padded:
        mask = torch.arange(time).expand(BATCH, -1) >= torch.tensor([[time], [20]])
    kept, hardly, half, fully = (
        mixer("attention", causal, attention_dropout=p).train() for p in (0.0, 1e-9, 0.5, 1.0)
    )
    whole = kept(x, key_padding_mask=mask)[0]
    torch.testing.assert_close(hardly(x, key_padding_mask=mask)[0], whole, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(half(x, key_padding_mask=mask)[0], whole, atol=1e-2)
    torch.testing.assert_close(half.eval()(x, key_padding_mask=mask)[0], whole)
    nothing = fully(x, key_padding_mask=mask)[0]
    torch.testing.assert_close(nothing, fully.out_proj.bias.expand_as(nothing))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 1e-9])
def test_attention_takes_masks_of_both_kinds(padded, dropout):
    """Boolean ones hide keys, others are added to the scores."""
    ours = mixer("attention", causal=False, attention_dropout=dropout).train()
    time = 70
    x = torch.randn(time, BATCH, WIDTH)
    padding = torch.zeros(BATCH, time, dtype=torch.bool)
    padding[0, -2:] = padded
    hidden = torch.ones(time, time, dtype=torch.bool).triu(1)
    expected = run(mixer("attention", causal=True), x, padding)
    for mask in (hidden, torch.zeros(time, time).masked_fill(hidden, float("-inf"))):
        y, _ = ours(x, x, x, key_padding_mask=padding, attn_mask=mask)
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_under_autocast(variant):
    module = mixer(variant, causal=True, conv_bias=True).train()
    x = torch.randn(9, BATCH, WIDTH)
    expected = run(module, x)
    with torch.autocast("cpu", torch.bfloat16):
        y = run(module, x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.1, atol=0.1)
    y.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("variant", ["lightweight", "dynamic"])
def test_dropconnect_drops_normalised_taps_at_every_position(variant):
    module = mixer(variant, causal=True, kernel_size=1, weight_dropout=0.5, glu=False).train()
    module.in_proj, module.out_proj = torch.nn.Identity(), torch.nn.Identity()
    y = run(module, torch.ones(200, BATCH, WIDTH)).unflatten(-1, (HEADS, -1))
    assert (y == y[..., :1]).all()  # one draw for all channels of a head
    assert set(y.unique().tolist()) == {0.0, 2.0}
    for dim in (0, 1, 2):  # independent over time, batch and heads
        assert (y != y.roll(1, dim)).any()
    assert run(module.eval(), torch.ones(4, BATCH, WIDTH)).eq(1).all()


@pytest.mark.parametrize("variant", CONVOLUTIONS)
def test_input_dropout_only_in_training(variant):
    module = mixer(variant, causal=False, kernel_size=3, input_dropout=0.5)
    x = torch.randn(6, BATCH, WIDTH)
    torch.testing.assert_close(run(module, x), run(module, x))
    module.train()
    assert not torch.equal(run(module, x), run(module, x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["dynamic", "composite"])
def test_refuses_what_it_cannot_do(name):
    x = torch.randn(3, BATCH, WIDTH)
    with pytest.raises(ValueError, match="attention mask"):
        mixer(name, causal=False)(x, x, x, attn_mask=torch.zeros(3, 3))
    for key, value in ((x.clone(), x), (None, x.clone())):
        with pytest.raises(ValueError, match="mixes the query alone"):
            mixer(name, causal=False, kernel_size=3)(x, key, value)
    module = mixer(name, causal=False).requires_grad_(False)
    torch.jit.trace(lambda *inputs: module(*inputs)[0], (x, x, x), check_trace=False)
    with pytest.raises(ValueError, match="only a causal mixer"):
        run(mixer(name, causal=False, kernel_size=3), x, state={})


@pytest.mark.parametrize("name", ["lightweight", "dynamic", "attention", "composite", "tisa"])
@pytest.mark.parametrize("shape", [(3, BATCH), (1, 3), (BATCH, 2)])
def test_refuses_a_padding_mask_of_another_shape(name, shape):
    x = torch.randn(3, BATCH, WIDTH)
    with pytest.raises(ValueError, match=rf"padding_mask must be .*\[{BATCH}, 3\]"):
        run(mixer(name, False, kernel_size=3), x, torch.zeros(shape, dtype=torch.bool))


def test_refuses_an_empty_sequence():
    module = mixer("dynamic", causal=True, renorm_padding=True)
    with pytest.raises(ValueError, match="time >= 1"):
        run(module, torch.empty(0, BATCH, WIDTH))


@pytest.mark.parametrize("variant", [*VARIANTS, "composite-injected-linear"])
def test_pickled(variant):
    options = {"projection_activation": "linear"} if variant.endswith("-linear") else {}
    module = mixer(variant.removesuffix("-linear"), causal=True, **options)
    x = torch.randn(5, BATCH, WIDTH)
    again = pickle.loads(pickle.dumps(module))
    assert torch.equal(again(x)[0], module(x)[0])


@pytest.mark.parametrize("variant", ["dynamic", "attention-headwise", "composite-injected"])
def test_compiled_for_any_length(variant):
    module = mixer(variant, causal=True)
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    for time in (5, 9):
        x = torch.randn(time, BATCH, WIDTH)
        torch.testing.assert_close(compiled(x)[0], module(x)[0])
