"""Short convolutions inside attention: where they stand, how they start, and their state."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from fairseq_convattn.mixers import MixerConfig, build_mixer
from fairseq_convattn.mixers import short_convolution as module
from fairseq_convattn.ops import use_implementation
from fairseq_convattn.ops.native import is_built

needs_kernels = pytest.mark.skipif(not is_built(), reason="needs the compiled kernels")

WIDTH, HEADS, BATCH, TAPS, RANK = 12, 3, 2, 4, 5
KINDS = ("static", "headwise", "low_rank")
MIXERS = ("attention", "composite", "tisa")


def mixer(kind, causal=True, name="attention", random=True, **options):
    torch.manual_seed(3)
    config = MixerConfig(
        mixer=name,
        causal=causal,
        short_convolution=kind,
        short_convolution_rank=RANK,
        **{"embed_dim": WIDTH, "num_heads": HEADS, "short_convolution_on": "qkvo", **options},
    )
    built = build_mixer(config).double().eval()
    for parameter in built.parameters() if random else ():
        torch.nn.init.normal_(parameter, std=0.3)
    return built


def convolved(short, y, x, left):
    """The paper's sum, position by position; ``left`` taps lie before a position's own."""
    time, rows = y.size(0), []
    for t in range(time):
        kernel = short.static
        if short.down is not None:
            z = x[t] @ short.down.weight.t()
            kernel = kernel + torch.einsum("br,rkc->bck", z, short.up)
        elif short.kernel is not None:
            taps = (x[t] @ short.kernel.t()).view(BATCH, HEADS, TAPS)
            kernel = kernel + taps.repeat_interleave(WIDTH // HEADS, 1)
        row = y[t]
        for k in range(TAPS):
            if 0 <= t + k - left < time:
                row = row + kernel[..., k] * y[t + k - left]
        rows.append(row)
    return torch.stack(rows)


def attention(ours, x, left):
    """What a mixer ``attention`` should give."""

    def after(name, y):
        if name not in ours.config.short_convolution_on:
            return y
        return convolved(ours.short_convolutions[name], y, x, left)

    q, k, v = (
        after(name, getattr(ours, f"{name}_proj")(x)).unflatten(-1, (HEADS, -1)).permute(1, 2, 0, 3)
        for name in "qkv"
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=ours.config.causal)
    return after("o", ours.out_proj(y.permute(2, 0, 1, 3).flatten(2)))


@pytest.mark.parametrize("causal, window, left", [(True, "centred", 3), (False, "centred", 2),
                                                  (False, "causal", 3)])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_any_projections_are_convolved_from_the_layers_input(kind, causal, window, left):
    x = torch.randn(7, BATCH, WIDTH, dtype=torch.float64)
    for letters in itertools.chain(*(itertools.combinations("qkvo", n) for n in range(1, 5))):
        options = {"short_convolution_on": "".join(letters), "short_convolution_window": window}
        ours = mixer(kind, causal, **options)
        torch.testing.assert_close(ours(x)[0], attention(ours, x, left), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MIXERS)
def test_the_cache_has_convolved_keys_and_each_is_convolved_once(name, monkeypatch):
    ours, seen = mixer("low_rank", name=name), []
    convolve = module.convolve_step

    def spy(y, *rest):
        seen.append(y.size(0))
        return convolve(y, *rest)

    monkeypatch.setattr(module, "convolve_step", spy)
    x, state = torch.randn(6, BATCH, WIDTH, dtype=torch.float64), {}
    for piece in x:
        ours(piece.unsqueeze(0), incremental_state=state)
    assert seen == [1] * 6 * len("qkvo")
    cached = ours._get_input_buffer(state)
    for letter, entry in (("k", "prev_key"), ("v", "prev_value")):
        y = getattr(ours, f"{letter}_proj")(x)
        expected = ours._heads(convolved(ours.short_convolutions[letter], y, x, TAPS - 1))
        torch.testing.assert_close(cached[entry], expected)


@pytest.mark.parametrize("kind", ["headwise", "low_rank"])
def test_starts_as_the_static_one(kind):
    ours, static = (mixer(k, random=False) for k in (kind, "static"))
    static.load_state_dict(ours.state_dict(), strict=False)
    x = torch.randn(9, BATCH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(ours(x)[0], static(x)[0])
    start = ours.short_convolutions["q"].static
    assert 0.4 < start.abs().max() <= TAPS**-0.5
    before = ours(x)[0]
    ours(x)[0].square().sum().backward()
    for parameter in ours.parameters():
        parameter.data -= 0.01 * parameter.grad
    predicted = ours.short_convolutions["q"]
    assert (predicted.kernel if kind == "headwise" else predicted.up).count_nonzero()
    assert not torch.allclose(ours(x)[0], before)


class Wrapped(torch.nn.Module):
    """As libraries wrap a linear layer; it has no weight."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return 2 * self.linear(x)


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def doubled(linear):
    new = Doubled(linear.in_features, linear.out_features, bias=False).to(linear.weight)
    new.weight = linear.weight
    return new


def with_a_hook(linear):
    linear.register_forward_hook(lambda module, given, z: 2 * z)
    return linear


@pytest.mark.parametrize("changed", [Wrapped, doubled, with_a_hook])
def test_a_changed_linear_map_predicts_kernels(changed):
    ours, plain = mixer("low_rank"), mixer("low_rank")
    for name, short in ours.short_convolutions.items():
        plain.short_convolutions[name].down.weight.data *= 2
        if name != "v":
            short.down = changed(short.down)
        else:
            short.down.weight.data *= 2
    x = torch.randn(6, BATCH, WIDTH, dtype=torch.float64)
    expected, state = plain(x)[0], {}
    torch.testing.assert_close(ours(x)[0], expected)
    tokens = [ours(token.unsqueeze(0), incremental_state=state)[0] for token in x]
    torch.testing.assert_close(torch.cat(tokens), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype, impl, autocast",
    [
        pytest.param(torch.float32, "native", False, marks=needs_kernels),
        (torch.bfloat16, None, False),
        (torch.float32, None, True),
    ],
)
def test_kernels_decode_where_they_are_asked_for_or_more_precise(
    kind, dtype, impl, autocast, monkeypatch
):
    """PyTorch would round a sum's products to half precision."""
    monkeypatch.setattr(module, "convolve_step", None)
    ours, state = mixer(kind, num_heads=1, embed_dim=64).to(dtype), {}
    x = torch.randn(6, BATCH, 64, dtype=dtype) / 4
    with use_implementation(impl), torch.autocast("cpu", enabled=autocast):
        tokens = [ours(token.unsqueeze(0), incremental_state=state)[0] for token in x]
        expected = ours(x)[0].float()
    torch.testing.assert_close(torch.cat(tokens).float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind, changed", [(k, "static") for k in KINDS] + [("low_rank", "up")])
def test_parameters_of_different_dtypes_decode(kind, changed):
    for first in "q", "k":
        ours, state = mixer(kind).float(), {}
        setattr(ours.short_convolutions[first], changed, None)
        parameter = getattr(mixer(kind).short_convolutions[first], changed).bfloat16()
        setattr(ours.short_convolutions[first], changed, torch.nn.Parameter(parameter))
        x = torch.randn(6, BATCH, WIDTH) / 4
        tokens = [ours(token.unsqueeze(0), incremental_state=state)[0] for token in x]
        torch.testing.assert_close(torch.cat(tokens), ours(x)[0], rtol=0.01, atol=0.01)


def test_without_short_convolutions_nothing_is_added():
    assert not [n for n in mixer("none").state_dict() if "short" in n]
    some = mixer("static", short_convolution_on="v").short_convolutions
    assert list(some) == ["v"]
