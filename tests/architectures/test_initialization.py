"""``attention_X`` starts and computes as fairseq's transformer of the same shape does."""

from argparse import Namespace

import pytest
import torch
from conftest import task_of
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.models.transformer import TransformerModel, base_architecture

from fairseq_convattn.architectures import ConvAttnModel

SHAPE = {
    "encoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "share_all_embeddings": True,
    "dropout": 0.0,
}


def seeded(family, task, **options):
    args = Namespace(**SHAPE, **options)
    if family is TransformerModel:
        base_architecture(args)
    torch.manual_seed(3)
    return family.build_model(args, task)


@pytest.mark.parametrize("normalize_before", [False, True])
def test_parameters_and_losses_are_those_of_fairseqs_transformer(normalize_before):
    task = task_of(types=60)
    dictionary = task.source_dictionary
    norms = {f"{side}_normalize_before": normalize_before for side in ("encoder", "decoder")}
    theirs = seeded(TransformerModel, task, **norms)
    mixers = {"encoder_mixers": "attention", "decoder_mixers": "attention"}
    ours = seeded(ConvAttnModel, task, **norms, **mixers)
    expected = dict(theirs.named_parameters())
    actual = dict(ours.named_parameters())
    assert actual.keys() == expected.keys()
    for name, parameter in expected.items():
        assert torch.equal(actual[name], parameter), name

    source = torch.randint(4, len(dictionary), (5, 9))
    source[1, :4] = dictionary.pad()  # fairseq pads sources on the left
    lengths = source.ne(dictionary.pad()).sum(-1)
    target = torch.randint(4, len(dictionary), (5, 7))
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.004) for net in (theirs, ours)]
    for _ in range(5):
        losses = []
        for net, optimizer in zip((theirs, ours), optimizers, strict=True):
            logits, _ = net(source, lengths, target.roll(1, -1))
            scores = net.get_normalized_probs((logits, None), log_probs=True)
            loss, _ = label_smoothed_nll_loss(scores.flatten(0, 1), target.flatten(), 0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("mixer", ["attention", "lightweight", "composite"])
def test_the_2019_codes_values_can_be_had(mixer):
    options = {"encoder_mixers": mixer, "decoder_mixers": mixer, "initialization": "xavier"}
    net = seeded(ConvAttnModel, task_of(), **options)
    for layer in (*net.encoder.layers, *net.decoder.layers):
        linears = [layer.fc1, layer.fc2]
        if mixer == "lightweight":
            linears += [layer.self_attn.in_proj, layer.self_attn.out_proj]
        for linear in linears:
            bound = (6 / sum(linear.weight.shape)) ** 0.5
            assert 0.95 * bound < linear.weight.abs().max() <= bound
            assert (linear.bias == 0).all()
