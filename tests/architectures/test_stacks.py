"""Whole models: what decoding sees is what training saw."""

from argparse import Namespace

import pytest
import torch
from conftest import random_tokens as tokens
from conftest import task_of
from fairseq.dataclass.configs import EMAConfig
from fairseq.models import build_model
from fairseq.models.ema.ema import EMA
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.nan_detector import NanDetector
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

from fairseq_convattn.architectures import ConvAttnLanguageModel, ConvAttnModel
from fairseq_convattn.architectures.config import LANGUAGE_MODEL, MASKED_LANGUAGE_MODEL
from fairseq_convattn.mixers import CrossAttention

MIXERS = [
    "lightweight",
    "dynamic",
    "attention",
    "composite",
    "tisa",
    "dynamic,attention,composite",
    *(f"attention,composite,tisa + {kind}" for kind in ("static", "headwise", "low_rank")),
]


def built(family, mixers, **options):
    """A random model of the family, and its dictionary of eight types. ``mixers``: one a layer, "+"
    the kind of their short convolutions."""
    torch.manual_seed(5)
    mixers, _, short = mixers.partition(" + ")
    if short:
        options |= {"short_convolution": short, "short_convolution_on": "qkvo12"}
    if family is ConvAttnModel:
        options["encoder_mixers"] = mixers
    task = task_of()
    net = family.build_model(Namespace(decoder_mixers=mixers, **options), task).eval()
    for name, parameter in net.named_parameters():
        if "short_convolutions" in name:  # those that predict kernels start at zero
            torch.nn.init.normal_(parameter, std=0.1)
    return net, task.source_dictionary


def model(mixers, **options):
    return built(
        ConvAttnModel,
        mixers,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=24,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_layers=3,
        decoder_layers=3,
        **options,
    )


def language_model(mixers, **options):
    return built(
        ConvAttnLanguageModel,
        mixers,
        decoder_embed_dim=16,
        decoder_ffn_embed_dim=24,
        decoder_attention_heads=4,
        decoder_layers=3,
        max_target_positions=64,
        **options,
    )


def assert_decodes_by_token(decoder, previous, **given):
    whole, _ = decoder(previous, **given)
    state = {}
    for step in range(1, previous.size(1) + 1):
        logits, _ = decoder(previous[:, :step], incremental_state=state, **given)
        torch.testing.assert_close(logits[:, -1], whole[:, step - 1], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("mixers", MIXERS)
def test_decoding_by_token_gives_what_training_saw(mixers):
    net, dictionary = model(mixers)
    source, previous = tokens(dictionary, 3, 6), tokens(dictionary, 3, 35)
    encoder_out = net.encoder(source, torch.tensor([6] * 3))
    assert_decodes_by_token(net.decoder, previous, encoder_out=encoder_out)


@torch.no_grad()
@pytest.mark.parametrize("mixers", MIXERS)
def test_a_language_model_by_token_gives_what_training_saw(mixers):
    net, dictionary = language_model(mixers)
    assert_decodes_by_token(net.decoder, tokens(dictionary, 3, 20))


@torch.no_grad()
@pytest.mark.parametrize("mixers", MIXERS)
def test_beam_search_keeps_one_copy_of_every_sentence(mixers, monkeypatch):
    """And finds what it finds when every hypothesis has its own."""
    net, dictionary = model(mixers)
    source, sizes, found = tokens(dictionary, 4, 6), set(), []
    attend = CrossAttention._attend

    def spy(self, q, k, *rest):
        sizes.add(k.size(0))
        return attend(self, q, k, *rest)

    monkeypatch.setattr(CrossAttention, "_attend", spy)
    sample = {"net_input": {"src_tokens": source, "src_lengths": torch.tensor([6] * 4)}}
    for together in (True, False):
        monkeypatch.setattr(CrossAttention, "_are_beams", lambda *_, t=together: t)
        generator = SequenceGenerator([net], dictionary, beam_size=3, max_len_b=9)
        found.append(generator.generate([net], sample))
        assert max(sizes) == (4 if together else 12)
    for expected, actual in zip(*found, strict=True):
        for e, a in zip(expected, actual, strict=True):
            assert torch.equal(a["tokens"], e["tokens"])
            torch.testing.assert_close(a["score"], e["score"])


def test_pruning_leaves_the_highway_layers_of_characters():
    options = {"character_embeddings": True, "character_filters": [(1, 8)]}
    whole, _ = language_model("dynamic", **options)
    pruned, _ = language_model("dynamic", **options, decoder_layers_to_keep="2")
    cfg = Namespace(arch="convattn_lm", decoder_layers=3, decoder_layers_to_keep="2")
    pruned.load_state_dict(whole.state_dict(), model_cfg=cfg)
    (layer,) = pruned.decoder.layers
    assert torch.equal(layer.fc1.weight, whole.decoder.layers[2].fc1.weight)


def test_pruned_weights_are_not_pruned_again():
    two, _ = language_model("dynamic", decoder_layers_to_keep="0,2")
    one, _ = language_model("dynamic", decoder_layers_to_keep="2")
    cfg = Namespace(arch="convattn_lm", decoder_layers=3, decoder_layers_to_keep="2")
    with pytest.raises(ValueError, match="--decoder-layers-to-keep: .* has 2 of 3 layers"):
        one.load_state_dict(two.state_dict(), model_cfg=cfg)


@torch.no_grad()
def test_pruning_the_layers_that_know_positions_adds_no_absolute_ones():
    whole, dictionary = language_model("attention,attention,tisa")
    pruned, _ = language_model("attention,attention,tisa", decoder_layers_to_keep="0,1")
    cfg = Namespace(arch="convattn_lm", decoder_layers=3, decoder_layers_to_keep="0,1")
    pruned.load_state_dict(whole.state_dict(), model_cfg=cfg)
    whole.decoder.layers = whole.decoder.layers[:2]
    previous = tokens(dictionary, 2, 6)
    torch.testing.assert_close(pruned(previous)[0], whole(previous)[0], rtol=0, atol=0)


@pytest.mark.parametrize("option", ["merge_src_tgt_embed", "share_all_embeddings"])
def test_dictionaries_that_differ_are_not_merged(option):
    task = task_of()
    task.target_dictionary = task_of(9).target_dictionary
    args = Namespace(encoder_embed_dim=16, **{option: True})
    name = option.replace("_", "-")
    with pytest.raises(ValueError, match=f"--{name}: needs .* --joined-dictionary"):
        ConvAttnModel.build_model(args, task)


@pytest.mark.parametrize("mixer", ["lightweight", "dynamic", "attention", "composite"])
def test_what_training_keeps_grows_no_faster_than_the_input(mixer):
    net, dictionary = language_model(mixer, weight_dropout=0.1, attention_dropout=0.1)
    net.train()

    def kept(time: int) -> int:
        sizes = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        previous = tokens(dictionary, 1, time)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits, _ = net(previous)
        assert logits.requires_grad
        return sum(sizes.values())

    constant = sum(p.numel() * p.element_size() for p in net.parameters())
    assert kept(2000) < 2.1 * kept(1000) + constant


@torch.no_grad()
@pytest.mark.parametrize("mixers", MIXERS)
@pytest.mark.parametrize("left", [False, True], ids=["right-padded", "left-padded"])
def test_a_sentence_does_not_depend_on_its_batch(mixers, left):
    net, dictionary = model(mixers)
    source, previous = tokens(dictionary, 1, 5), tokens(dictionary, 1, 4)
    alone, _ = net(source, torch.tensor([5]), previous)

    def padded(sentence):
        batch = tokens(dictionary, 2, 19)
        length = sentence.size(1)
        batch[0] = dictionary.pad()
        batch[0, slice(-length, None) if left else slice(length)] = sentence[0]
        return batch

    y, _ = net(padded(source), torch.tensor([5, 19]), padded(previous))
    here = y[:1, -4:] if left else y[:1, :4]
    torch.testing.assert_close(here, alone, rtol=0, atol=1e-5)


def test_no_mask_of_time_by_time_is_built():
    net, dictionary = model("dynamic")
    assert net.decoder.buffered_future_mask(torch.zeros(100_000, 1, 1)) is None


def test_full_context_alignment_is_refused():
    net, dictionary = model("attention")
    with pytest.raises(ValueError, match="full_context_alignment"):
        net.decoder(tokens(dictionary, 1, 3), full_context_alignment=True)


@pytest.mark.parametrize("padded", [None, slice(5, None), slice(3)], ids=str)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"encoder_normalize_before": True, "layernorm_embedding": True}]
)
def test_the_encoder_gives_what_fairseqs_gives(padded, given, options):
    net, dictionary = model("dynamic,attention,composite", **options)
    source = tokens(dictionary, 3, 7)
    if padded is not None:
        source[1, padded] = dictionary.pad()
    embeddings = torch.randn(3, 7, 16) if given else None
    arguments = source, None, given, embeddings
    found = net.encoder.forward_scriptable(*arguments)
    expected = TransformerEncoderBase.forward_scriptable(net.encoder, *arguments)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert found["encoder_states"] if given else not found["encoder_states"]


@pytest.mark.parametrize("build", [model, language_model])
def test_layer_norms_copy_nothing(build):
    net, dictionary = build("dynamic", encoder_normalize_before=True, decoder_normalize_before=True)
    strided = []
    for module in net.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.register_forward_pre_hook(
                lambda _, given: strided.append(given[0].is_contiguous())
            )
    source = tokens(dictionary, 3, 7)
    net(*((source, None, source) if build is model else (source,)))
    assert strided and all(strided)


@pytest.mark.parametrize("family", [model, language_model])
def test_averages_over_the_training_keep_the_last_layer_norm(family):
    pre_norm = {"encoder_normalize_before": True} if family is model else {}
    net, _ = family("dynamic", decoder_normalize_before=True, **pre_norm)
    average = EMA(net, EMAConfig(store_ema=True))
    average.step(net, 1)
    assert average.get_model().state_dict().keys() == net.state_dict().keys()


@pytest.mark.parametrize("terms", ["content,tisa", "content,kerple"])
def test_fairseqs_nan_detector_runs(terms):
    net, dictionary = language_model("composite", attention_terms=terms)
    with NanDetector(net):
        net(tokens(dictionary, 2, 5))[0].sum().backward()


def test_models_are_built_from_their_own_configuration():
    task = task_of()
    task.args = Namespace(max_target_positions=None, tokens_per_sample=32)
    sizes = {"decoder_embed_dim": 16, "decoder_ffn_embed_dim": 16, "decoder_attention_heads": 2}
    for cfg in (LANGUAGE_MODEL.config(**sizes), Namespace(arch="convattn_lm", **sizes)):
        assert ConvAttnLanguageModel.build_model(cfg, task).max_positions() == 32


def test_what_hydra_builds_is_stored_whole():
    """fairseq builds models of a dataclass from a copy of the configuration."""
    sizes = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16, "encoder_attention_heads": 2}
    whole = OmegaConf.create({"task": {"_name": "masked_lm"}})
    whole.model = OmegaConf.structured(MASKED_LANGUAGE_MODEL.config(**sizes))
    whole.model._name = "convattn_mlm"
    build_model(whole.model, task_of())
    assert whole.model.encoder_layers == 12 and whole.model.weight_norm == "softmax"


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
def test_quantised_linear_layers():
    net, dictionary = language_model("attention + low_rank")
    quantised = torch.ao.quantization.quantize_dynamic(net, {torch.nn.Linear})
    given = tokens(dictionary, 2, 7)
    assert (quantised(given)[0] - net(given)[0]).abs().max() < 0.3
