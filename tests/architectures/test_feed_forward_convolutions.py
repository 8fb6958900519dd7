"""Short convolutions of the feed-forward block, and what fairseq's layers do around them."""

import copy
import pickle
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from conftest import task_of
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper

from fairseq_convattn.architectures import ConvAttnLanguageModel, ConvAttnMaskedLanguageModel
from fairseq_convattn.architectures.stacks import ConvAttnDecoderLayer, ConvAttnEncoderLayer
from fairseq_convattn.mixers import MixerConfig

WIDTH, INNER, HEADS, TAPS = 8, 12, 2, 3
KINDS = ("static", "headwise", "low_rank")


def layer(kind, on="12", causal=True, heads=HEADS, window="centred"):
    """With random weights, in evaluation."""
    torch.manual_seed(7)
    config = MixerConfig(
        *("attention", WIDTH, heads),
        causal=causal,
        short_convolution=kind,
        short_convolution_on=on,
        short_convolution_taps=TAPS,
        short_convolution_window=window,
    )
    side = "decoder" if causal else "encoder"
    names = ("embed_dim", "ffn_embed_dim", "attention_heads")
    sizes = {f"{side}_{n}": x for n, x in zip(names, (WIDTH, INNER, heads), strict=True)}
    cfg = TransformerConfig.from_namespace(Namespace(**sizes, dropout=0.0))
    built = ConvAttnDecoderLayer(cfg, config, True) if causal else ConvAttnEncoderLayer(cfg, config)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return built.double().eval()


def convolved(short, y, u, left):
    """The paper's sum of one sentence, ``[time, channels]``; ``left`` taps are before its own."""
    rows = []
    for t in range(len(y)):
        kernel = short.static.t()
        if short.down is not None:
            kernel = kernel + torch.einsum("r,rkc->kc", short.down.weight @ u[t], short.up)
        if short.kernel is not None:
            taps = (short.kernel @ u[t]).view(HEADS, TAPS)
            kernel = kernel + taps.repeat_interleave(y.size(1) // HEADS, 0).t()
        near = [(k, t + k - left) for k in range(TAPS) if 0 <= t + k - left < len(y)]
        rows.append(y[t] + sum(kernel[k] * y[position] for k, position in near))
    return torch.stack(rows)


def feed_forward(layer, u, left):
    """What the block gives for the sentence u, ``[time, channels]``."""
    short, (first, second) = layer.feed_forward_convolutions, (layer.fc1, layer.fc2)
    y = F.linear(u, first.weight, first.bias)
    y = F.relu(convolved(short["1"], y, u, left) if "1" in short else y)
    y = F.linear(y, second.weight, second.bias)
    return convolved(short["2"], y, u, left) if "2" in short else y


@pytest.mark.parametrize("on", ["12", "1", "2q"])
@pytest.mark.parametrize(
    "causal, window, left", [(True, "centred", 2), (False, "centred", 1), (False, "causal", 2)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_both_maps_are_convolved_from_the_blocks_input(kind, causal, window, left, on):
    ours, given = layer(kind, on, causal, window=window), []
    ours.self_attn_layer_norm.register_forward_hook(lambda *call: given.append(call[-1]))
    lengths, x = (6, 4), torch.randn(6, 2, WIDTH, dtype=torch.float64)
    padding = torch.arange(6) >= torch.tensor(lengths)[:, None]
    found = ours(x, **{f"{'self_attn' if causal else 'encoder'}_padding_mask": padding})
    (u,), y = given, found[0] if causal else found
    for sentence, length in enumerate(lengths):
        block = u[:length, sentence]
        expected = ours.final_layer_norm(block + feed_forward(ours, block, left))
        torch.testing.assert_close(y[:length, sentence], expected, rtol=0, atol=1e-12)


def test_threads_compute_with_what_they_were_given():
    ours = layer("low_rank", causal=False)
    inputs = [torch.randn(200, 2, WIDTH, dtype=torch.float64) for _ in range(8)]
    masks = [torch.arange(200).expand(2, -1) >= n for n in range(20, 180, 20)]
    alone = [ours(x, m) for x, m in zip(inputs, masks, strict=True)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            for wanted, found in zip(alone, threads.map(ours, inputs, masks), strict=True):
                assert torch.equal(wanted, found)


@pytest.mark.parametrize("causal", [True, False])
def test_recomputed_activations_have_the_same_gradients(causal):
    """By fairseq's wrapper, which computes a layer again in the backward pass."""
    x = torch.randn(5, 2, WIDTH, dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    name = "self_attn_padding_mask" if causal else "encoder_padding_mask"
    gradients = []
    for wrap in (lambda module: module, checkpoint_wrapper):
        ours = wrap(layer("low_rank", causal=causal))
        y = ours(x.clone().requires_grad_(), **{name: padding})
        (y[0] if causal else y).square().sum().backward()
        gradients.append([parameter.grad for parameter in ours.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_convolve_with_their_own_weights(copied):
    ours, x = layer("low_rank"), torch.randn(5, 2, WIDTH, dtype=torch.float64)
    wanted, theirs = ours(x)[0], copied(ours)
    for parameter in ours.parameters():
        parameter.data.zero_()
    assert torch.equal(theirs(x)[0], wanted)


def test_a_layer_is_compiled_whole():
    ours, x = layer("low_rank"), torch.randn(5, 2, WIDTH, dtype=torch.float64)
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x)[0], ours(x)[0])


@pytest.mark.parametrize("name", ["fc1", "fc2"])
def test_a_replaced_layer_is_an_error(name):
    ours = layer("static", on="2" if name == "fc2" else "12")
    old = getattr(ours, name)
    setattr(ours, name, torch.nn.Linear(old.in_features, old.out_features).double())
    with pytest.raises(RuntimeError, match="fc1 or fc2 was replaced or wrapped"):
        ours(torch.randn(5, 2, WIDTH, dtype=torch.float64))


def test_a_failed_call_leaves_nothing_behind(monkeypatch):
    ours, x = layer("low_rank"), torch.randn(5, 2, WIDTH, dtype=torch.float64)
    wanted = ours(x)[0]
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(ours, "activation_fn", lambda x: 1 / 0)
        ours(x)
    assert torch.equal(ours(x)[0], wanted)


def test_a_layer_within_a_layer():
    inner, ours = layer("static"), layer("low_rank")
    x = torch.randn(5, 2, WIDTH, dtype=torch.float64)
    wanted = ours(x)[0]
    ours.fc1.register_forward_pre_hook(lambda *call: inner(x) and None)
    assert torch.equal(ours(x)[0], wanted)


def test_only_layers_whose_mixer_has_short_convolutions_have_them():
    options = {"decoder_embed_dim": WIDTH, "decoder_layers": 2, "decoder_attention_heads": 2}
    options |= {"short_convolution": "static", "short_convolution_on": "2", "max_positions": 16}
    args = Namespace(**options, decoder_mixers="dynamic,tisa")
    layers = ConvAttnLanguageModel.build_model(args, task_of()).decoder.layers
    assert [layer.feed_forward_convolutions is None for layer in layers] == [True, False]


def test_heads_that_do_not_divide_the_block():
    with pytest.raises(ValueError, match="8 heads do not divide the 12 channels of the"):
        layer("headwise", heads=8)


def test_layers_that_share_their_weights_share_them():
    options = {"short_convolution": "low_rank", "short_convolution_on": "qkv12"}
    sizes = {"encoder_embed_dim": WIDTH, "encoder_ffn_embed_dim": INNER, "encoder_layers": 3}
    args = Namespace(**options, **sizes, encoder_attention_heads=2, encoder_mixers="attention",
                     share_encoder_layers=True, max_positions=16)  # fmt: skip
    net = ConvAttnMaskedLanguageModel.build_model(args, task_of())
    layers = [*net.encoder.sentence_encoder.layers.children()]
    shared, *others = ([*each.feed_forward_convolutions.parameters()] for each in layers)
    for other in others:
        assert all(one is another for one, another in zip(shared, other, strict=True))
