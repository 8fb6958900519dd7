"""Masked language models: what they are made of, and their options."""

from argparse import Namespace

import pytest
import torch
from conftest import random_tokens as tokens
from conftest import task_of
from fairseq.models.roberta import RobertaModel
from options_of_models import parse

from fairseq_convattn.architectures import ConvAttnMaskedLanguageModel
from fairseq_convattn.architectures.config import MASKED_LANGUAGE_MODEL, configure
from fairseq_convattn.architectures.presets import MASKED_LM_PRESETS
from fairseq_convattn.architectures.skeleton import skeleton

TASK = ("--task", "masked_lm", "--criterion", "masked_lm")
MIXERS = ["lightweight", "dynamic", "attention", "composite", "tisa", "dynamic,attention,composite"]
SHAPE = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 4,
    "encoder_layers": 3,
}
FACTORIZED = {"encoder_input_dim": 8}


def built(family=ConvAttnMaskedLanguageModel, **chosen):
    """A random model of a few layers, and its dictionary of eight types."""
    torch.manual_seed(5)
    task = task_of()
    net = family.build_model(Namespace(**{**SHAPE, **chosen}), task)
    return net.eval(), task.source_dictionary


def sized(arch: str, **chosen):
    """An architecture with 30,000 types and 512 positions, without its memory."""
    args = Namespace(**{**MASKED_LM_PRESETS[arch], **chosen})
    return skeleton(ConvAttnMaskedLanguageModel, args, 30_000)


def count(model) -> int:
    return sum(p.numel() for p in model.parameters())


def encoder(model):
    return model.encoder.sentence_encoder


@torch.no_grad()
@pytest.mark.parametrize("normalize_before", [False, True])
def test_with_attention_it_is_fairseqs_roberta(normalize_before):
    chosen = {"encoder_normalize_before": normalize_before, "max_positions": 20}
    ours, dictionary = built(encoder_mixers="attention", **chosen)
    roberta, _ = built(RobertaModel, **chosen)
    ours.register_classification_head("grammar", num_classes=3)
    roberta.register_classification_head("grammar", num_classes=3)
    roberta.load_state_dict(ours.state_dict())
    source = tokens(dictionary, 3, 7)
    source[0, 5:] = dictionary.pad()
    masked = source.eq(source[0, 0])
    for call in (
        {},
        {"features_only": True},
        {"masked_tokens": masked},
        {"classification_head_name": "grammar"},
    ):
        torch.testing.assert_close(ours(source, **call)[0], roberta(source, **call)[0])


@torch.no_grad()
@pytest.mark.parametrize("mixers", MIXERS)
def test_without_absolute_positions_inputs_may_be_longer_than_any_before(mixers):
    net, dictionary = built(
        encoder_mixers=mixers, no_token_positional_embeddings="true", max_positions=10
    )
    assert encoder(net).embed_positions is None and net.max_positions() >= 100_000
    y, _ = net(tokens(dictionary, 2, 300))
    assert y.shape == (2, 300, len(dictionary)) and y.isfinite().all()


def test_bert_base_has_as_many_parameters_as_its_shape_says():
    width, ffn, types, positions = 768, 3072, 30_000, 512 + 2  # fairseq's table has two unused rows
    norm = 2 * width
    layer = 4 * (width * width + width) + 2 * width * ffn + ffn + width + 2 * norm
    output = width * width + width + norm + types  # its table is the embedding's
    expected = (types + positions) * width + norm + 12 * layer + output
    assert count(sized("attention_bert_base")) == expected
    assert count(sized("attention_bert_base", untie_weights_roberta=True)) == (
        expected + types * width
    )
    narrow = 128
    output = width * narrow + narrow + 2 * narrow + types
    factorized = (types + positions) * narrow + 2 * narrow + narrow * width + width
    assert count(sized("attention_albert_base")) == factorized + layer + output
    absolute = (
        sized("attention_albert_base"),
        sized("attention_albert_base", no_token_positional_embeddings="true"),
    )
    assert count(absolute[0]) - count(absolute[1]) == positions * narrow


@pytest.mark.parametrize(
    "mixers, flag",
    [
        ("lightweight", "checkpoint_activations"),
        ("dynamic", "offload_activations"),
        ("attention", None),
        ("composite", "checkpoint_activations"),
        ("tisa", None),
    ],
)
def test_layers_that_share_their_weights(mixers, flag):
    """The same as layers of equal weights, whose gradients add up."""
    chosen = {"encoder_mixers": mixers, "encoder_kernel_sizes": 7, **FACTORIZED}
    chosen |= {"dropout": 0.0, "attention_dropout": 0.0} | ({flag: True} if flag else {})
    shared, dictionary = built(share_encoder_layers="true", **chosen)
    apart, _ = built(**chosen)
    assert shared.state_dict().keys() == apart.state_dict().keys()
    apart.load_state_dict(shared.state_dict())
    prefix = "encoder.sentence_encoder.layers"
    own = {name for name, _ in shared.named_parameters() if name.startswith(f"{prefix}.1.")}
    assert all(".self_attn.terms." in name for name in own)
    assert bool(own) == (mixers in ("composite", "tisa"))
    assert all(("forward" in vars(layer)) == bool(flag) for layer in encoder(shared).layers)
    source = tokens(dictionary, 2, 9)
    for net in (shared, apart):
        torch.manual_seed(7)
        net.train()(source)[0].square().sum().backward()
    theirs = dict(apart.named_parameters())
    for name, parameter in shared.named_parameters():
        layers = [name]
        if name.startswith(f"{prefix}.0.") and ".self_attn.terms." not in name:
            layers = [name.replace(f"{prefix}.0.", f"{prefix}.{i}.") for i in range(3)]
        expected = sum(theirs[layer].grad for layer in layers)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-5)


def test_shared_weights_survive_training_and_loading():
    net, dictionary = built(encoder_mixers="attention", share_encoder_layers="true")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(tokens(dictionary, 2, 9))[0].square().sum().backward()
    optimizer.step()
    other, _ = built(encoder_mixers="attention", share_encoder_layers="true")
    other.load_state_dict(net.half().state_dict())
    for model in (net, other):
        first, *rest = (layer.state_dict() for layer in encoder(model).layers)
        assert all(torch.equal(first[name], layer[name]) for layer in rest for name in first)
        assert len({id(layer.fc1.weight) for layer in encoder(model).layers}) == 1


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("normalize_before", [False, True])
def test_factorized_embeddings(untied, normalize_before):
    """ALBERT's: positions, norm and dropout are those of the narrow embedding."""
    net, dictionary = built(
        encoder_mixers="attention",
        encoder_normalize_before=normalize_before,
        untie_weights_roberta=untied,
        **FACTORIZED,
    )
    inputs, head = encoder(net), net.encoder.lm_head
    assert inputs.embed_tokens.weight.shape == head.weight.shape == (len(dictionary), 8)
    assert inputs.embed_positions.weight.size(1) == inputs.layernorm_embedding.weight.size(0) == 8
    assert (head.weight is inputs.embed_tokens.weight) is not untied
    source = tokens(dictionary, 2, 6)
    source[1, 4:] = dictionary.pad()
    embedded = inputs.embed_tokens(source) + inputs.embed_positions(source)
    embedded = inputs.project_embedding(inputs.layernorm_embedding(embedded))
    embedded = embedded.masked_fill(source.eq(dictionary.pad())[..., None], 0)
    features, extra = net(source, features_only=True, return_all_hiddens=True)
    assert features.shape == (2, 6, 16)
    torch.testing.assert_close(extra["inner_states"][0].transpose(0, 1), embedded)
    scores = net(source)[0]
    scores.square().sum().backward()
    assert scores.shape == (2, 6, len(dictionary))
    assert all(parameter.grad is not None for parameter in net.parameters())


@torch.no_grad()
@pytest.mark.parametrize("spectral", [False, True])
def test_classification_heads_load_on_demand(spectral):
    chosen = {"encoder_mixers": "attention", "spectral_norm_classification_head": spectral}
    net, dictionary = built(**chosen)
    net.register_classification_head("grammar", num_classes=3)
    source = tokens(dictionary, 2, 6)
    net.train()(source, classification_head_name="grammar")  # spectral normalisation takes a step
    loaded, _ = built(load_checkpoint_heads=True, **chosen)
    loaded.load_state_dict(net.state_dict())
    scores = (m.eval()(source, classification_head_name="grammar")[0] for m in (net, loaded))
    torch.testing.assert_close(*scores)
    without, _ = built(**chosen)
    without.load_state_dict(net.state_dict())
    assert not without.classification_heads


@pytest.mark.parametrize("mixers", MIXERS)
def test_starts_as_bert_does(mixers):
    net, dictionary = built(encoder_mixers=mixers, encoder_embed_dim=64)
    for module in encoder(net).modules():
        if isinstance(module, torch.nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.15)
            assert module.bias is None or not module.bias.any()
    assert not encoder(net).embed_tokens.weight[dictionary.pad()].any()
    kernels = [p for name, p in net.named_parameters() if name.endswith("self_attn.kernel")]
    assert all(kernel.std() > 0.1 for kernel in kernels) and bool(kernels) == (
        mixers == "lightweight"
    )


def chosen_by(arch, *flags) -> Namespace:
    return configure(parse(arch, *TASK, *flags), MASKED_LANGUAGE_MODEL).options


def test_presets_have_the_papers_shapes():
    shape = ("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    shape = (*shape, "encoder_layers", "encoder_input_dim")
    for arch, expected in (
        ("dynamic_conv_bert_tiny", (128, 512, 4, 4, 128)),
        ("dynamic_conv_bert_small", (256, 1024, 4, 12, 128)),
        ("attention_albert_base", (768, 3072, 12, 12, 128)),
    ):
        args = chosen_by(arch)
        assert tuple(getattr(args, name) for name in shape) == expected, arch
        assert (args.dropout, args.attention_dropout, args.activation_fn) == (0.1, 0.1, "gelu")
        assert args.layernorm_embedding and not args.encoder_normalize_before
        assert args.share_encoder_layers == ("albert" in arch)
    mixers = chosen_by("dynamic_conv_bert_base").encoder_mixers
    assert [m.kernel_size for m in mixers] == [3, 7, 15] + [31] * 9
    assert all(m.mixer == "dynamic" and m.glu and not m.causal for m in mixers)
