"""From command line and presets to the mixer of every layer; errors in one line."""

import dataclasses
import importlib.util
import re
from argparse import Namespace

import pytest
from conftest import SHRUNK, train
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from omegaconf import OmegaConf
from options_of_models import configuration, count, parse, refusal

from fairseq_convattn.__main__ import main as help_command
from fairseq_convattn.architectures import overview
from fairseq_convattn.architectures.config import (
    ENCODER_DECODER,
    LANGUAGE_MODEL,
    MASKED_LANGUAGE_MODEL,
)
from fairseq_convattn.architectures.overview import parameters
from fairseq_convattn.architectures.presets import ENCODER_DECODER_PRESETS, LANGUAGE_MODEL_PRESETS
from fairseq_convattn.architectures.skeleton import language_model_skeleton, skeleton
from fairseq_convattn.mixers import MIXERS


def test_presets_have_the_papers_shapes():
    cfg = configuration("dynamic_conv_wmt_en_de_big")
    assert (cfg.encoder.embed_dim, cfg.decoder.ffn_embed_dim) == (1024, 4096)
    assert [m.kernel_size for m in cfg.encoder.mixers] == [3, 7, 15, 31, 31, 31, 31]
    assert [m.kernel_size for m in cfg.decoder.mixers] == [3, 7, 15, 31, 31, 31]
    mixer = cfg.decoder.mixers[0]
    assert (mixer.mixer, mixer.num_heads, mixer.glu, mixer.causal) == ("dynamic", 16, True, True)
    assert (cfg.dropout, cfg.attention_dropout) == (0.3, 0.1)
    assert (mixer.weight_dropout, mixer.input_dropout) == (0.1, 0.1)

    cfg = configuration("lightweight_conv_iwslt_de_en")
    assert (cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim) == (512, 1024)
    assert {m.mixer for m in cfg.encoder.mixers} == {"lightweight"}
    assert not any(m.glu for m in cfg.encoder.mixers + cfg.decoder.mixers)

    cfg = configuration("attention_wmt_en_de")
    assert [m.mixer for m in cfg.encoder.mixers] == ["attention"] * 6

    cfg = configuration("dynamic_conv_tiny")
    assert [m.kernel_size for m in cfg.encoder.mixers] == [3, 7, 15, 31]
    assert (cfg.encoder.embed_dim, cfg.encoder.ffn_embed_dim) == (128, 256)
    assert (cfg.encoder.attention_heads, cfg.decoder.layers) == (4, 4)


def test_the_command_line_wins_over_the_preset_and_the_preset_over_the_base():
    cfg = configuration("dynamic_conv_iwslt_de_en", "--dropout", "0.25", "--encoder-glu", "true")
    assert cfg.dropout == 0.25
    assert cfg.encoder.mixers[0].glu and not cfg.decoder.mixers[0].glu
    assert cfg.encoder.embed_dim == 512 and cfg.encoder.ffn_embed_dim == 1024
    assert configuration("convattn").encoder.ffn_embed_dim == 2048


def test_the_decoder_follows_the_encoder():
    cfg = configuration("dynamic_conv_tiny", "--encoder-embed-dim", "64")
    dims = (cfg.decoder.embed_dim, cfg.decoder.input_dim, cfg.decoder.output_dim)
    assert dims == (64, 64, 64) and cfg.decoder.mixers[0].embed_dim == 64


def test_a_stored_configuration_describes_its_whole_model():
    """So that a checkpoint stays what it is when a default changes."""
    cfg = convert_namespace_to_omegaconf(parse("dynamic_conv_tiny")).model
    assert cfg.encoder_kernel_sizes == [3, 7, 15, 31] and cfg.decoder_embed_dim == 128
    assert (cfg.encoder_glu, cfg.weight_norm, cfg.decoder_layers) == ("true", "softmax", 4)


def test_mixers_and_kernels_by_layer():
    cfg = configuration(
        "convattn",
        *("--encoder-layers", "3", "--encoder-mixers", "dynamic, lightweight,attention"),
        *("--encoder-kernel-sizes", "5,9,1", "--decoder-layers", "2"),
        *("--decoder-kernel-sizes", "[4]", "--decoder-conv-dim", "256"),
    )
    assert [m.mixer for m in cfg.encoder.mixers] == ["dynamic", "lightweight", "attention"]
    assert [m.kernel_size for m in cfg.encoder.mixers] == [5, 9, 1]
    assert [m.kernel_size for m in cfg.decoder.mixers] == [4, 4]
    assert cfg.decoder.mixers[0].conv_dim == 256


@pytest.mark.parametrize("layers", ["1", "2", "9"])
def test_any_number_of_layers(layers):
    cfg = configuration("dynamic_conv_wmt_en_de", "--encoder-layers", layers)
    sizes = [m.kernel_size for m in cfg.encoder.mixers]
    assert sizes == [3, 7, 15, 31, 31, 31, 31, 31, 31][: int(layers)]


def test_pruned_stacks_keep_the_mixers_of_the_layers_they_keep():
    cfg = configuration(
        "dynamic_conv_tiny",
        *("--encoder-mixers", "dynamic,lightweight,attention,dynamic"),
        *("--encoder-layers-to-keep", "3,1"),
    )
    kept = [(m.mixer, m.kernel_size) for m in cfg.encoder.mixers]
    assert kept == [("lightweight", 7), ("dynamic", 31)]


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--encoder-mixers dynamic,dynamic", "--encoder-mixers: 2 values for 4 layers"),
        (
            "--decoder-mixers dynamics",
            "--decoder-mixers: unknown mixer 'dynamics', choose from lightweight, dynamic",
        ),
        ("--encoder-kernel-sizes 3,7", "--encoder-kernel-sizes: 2 values for 4 layers"),
        (
            "--encoder-kernel-sizes 4",
            "--encoder-kernel-sizes: a kernel of 4 taps cannot be centred",
        ),
        ("--encoder-kernel-sizes 3;7", "--encoder-kernel-sizes: '3;7' must be whole numbers"),
        ("--encoder-kernel-sizes 3,7.5,3,3", "--encoder-kernel-sizes: '3,7.5,3,3' must be"),
        ("--encoder-layers -1", "--encoder-layers: -1 is less than 0"),
        ("--encoder-conv-dim -4", "--encoder-conv-dim: -4 is less than 1"),
        ("--weight-dropout 1.5", "--weight-dropout: 1.5 is no probability"),
        ("--encoder-kernel-sizes 0", "--encoder-kernel-sizes: a kernel of 0 taps cannot work"),
        ("--decoder-kernel-sizes -3", "--decoder-kernel-sizes: a kernel of -3 taps cannot work"),
        (
            "--encoder-attention-heads 5",
            "--encoder-attention-heads: 5 heads do not divide the width 128",
        ),
        ("--decoder-attention-heads 0", "--decoder-attention-heads: 0 is less than 1"),
        ("--decoder-conv-dim 30", "--decoder-conv-dim: 4 heads do not divide the width 30"),
        ("--encoder-glu maybe", "--encoder-glu: 'maybe' is neither true nor false"),
        (
            "--renorm-padding --weight-norm tanh",
            "--renorm-padding: works with --weight-norm softmax",
        ),
        ("--cross-self-attention", "--cross-self-attention: needs --decoder-mixers attention"),
        (
            "--decoder-layers-to-keep 0,7",
            "--decoder-layers-to-keep: '0,7' must name layers from 0 to 3",
        ),
        ("--decoder-layers-to-keep x", "--decoder-layers-to-keep: 'x' must name layers"),
        ("--dropout 2", "--dropout: 2.0 is no probability"),
        ("--activation-dropout -1", "--activation-dropout: -1.0 is no probability"),
        ("--encoder-layerdrop 1e9", "--encoder-layerdrop: 1000000000.0 is no probability"),
        ("--decoder-layerdrop 1", "--decoder-layerdrop: 1 would drop every layer"),
        ("--encoder-embed-dim 0", "--encoder-embed-dim: 0 is less than 1"),
        ("--quant-noise-pq 0.1 --quant-noise-pq-block-size 7", "--quant-noise-pq-block-size: bl"),
        ("--fp16 --cpu", "--fp16: needs a GPU"),
        ("--base-layers 1", "--base-layers: needs several processes"),
        ("--adaptive-input", "--adaptive-input: nobody reads it"),
        ("--adaptive-softmax-cutoff 8", "--criterion: cross_entropy cannot train an adaptive"),
        ("--criterion adaptive_loss", "--criterion: adaptive_loss needs --adaptive-softmax-cutoff"),
        (
            "--criterion adaptive_loss --adaptive-softmax-cutoff 8 --tie-adaptive-weights",
            "--tie-adaptive-weights: needs adaptive input",
        ),
        (
            "--share-decoder-input-output-embed --decoder-output-dim 64",
            "--share-decoder-input-output-embed: needs equal --decoder-output-dim",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_line_before_anything_is_loaded(flags, message):
    base = (
        "--encoder-embed-dim 128 --encoder-layers 4 --decoder-layers 4 "
        "--encoder-attention-heads 4 --decoder-attention-heads 4"
    )
    assert refusal("convattn", *base.split(), *flags.split()).startswith(message)


def test_attention_may_drop_everything():
    """As fairseq's own may."""
    assert configuration("attention_tiny", "--attention-dropout", "1.0").attention_dropout == 1
    with pytest.raises(SystemExit, match="--attention-dropout: -0.5 is no probability"):
        parse("attention_tiny", "--attention-dropout", "-0.5")


@pytest.mark.parametrize(
    "task, arch, message",
    [
        (
            "masked_lm",
            "composite_attention_tiny",
            "composite_attention_tiny is for --task translation and summarization; for masked_lm "
            "there are convattn_mlm and what 'convattn architectures --task masked_lm' lists",
        ),
        ("translation", "convattn_lm", "convattn_lm is for --task language_modeling; for transl"),
        ("language_modeling", "tisa_bert_tiny", "tisa_bert_tiny is for --task masked_lm and sen"),
    ],
)
def test_an_architecture_for_other_tasks(task, arch, message):
    assert refusal(arch, "--task", task).startswith(f"--arch: {message}")


def test_unknown_norms_are_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit):
        parse("dynamic_conv_tiny", "--weight-norm", "l3")
    assert "--weight-norm: invalid choice: 'l3'" in capsys.readouterr().err


def test_a_switch_needs_no_value():
    cfg = configuration("dynamic_conv_iwslt_de_en", "--encoder-glu")
    assert cfg.encoder.mixers[0].glu and not cfg.decoder.mixers[0].glu


@pytest.mark.parametrize("arch", ["attention_tiny", "convattn"])
def test_hydra_is_told_the_same(arch):
    model = {"_name": arch, "encoder_mixers": "attention", "decoder_mixers": "attention"}
    for extra, whole, message in (
        ({"weight_dropout": 0.3}, {}, "--weight-dropout: no layer reads it"),
        ({"conv_bias": True}, {}, "--conv-bias: no layer reads it"),
        ({}, {"common": {"fp16": True, "cpu": True}}, "--fp16: needs a GPU"),
        ({}, {"criterion": {"_name": "adaptive_loss"}}, "--criterion: adaptive_loss needs"),
    ):
        cfg = OmegaConf.create({"model": {**model, **extra}, **whole})
        with pytest.raises(SystemExit) as error:
            build_model(cfg.model, None)
        assert str(error.value).startswith(f"error: {message}")


def test_a_mixer_from_outside_may_read_any_option(monkeypatch):
    """And is not checked as if it were a convolution."""
    monkeypatch.setitem(MIXERS, "mine", MIXERS["attention"])
    flags = ("--encoder-mixers", "mine", "--encoder-kernel-sizes", "4", "--weight-dropout", "0.3")
    mixer = configuration("attention_tiny", *flags).encoder.mixers[0]
    assert (mixer.mixer, mixer.kernel_size, mixer.weight_dropout) == ("mine", 4, 0.3)
    skeleton(Namespace(encoder_mixers="mine", encoder_layers=1, decoder_layers=1), 10, 10)


def test_a_model_built_from_python_gets_the_same_error():
    with pytest.raises(ValueError, match="--encoder-kernel-sizes"):
        skeleton(Namespace(encoder_kernel_sizes=[2]), 10, 10)


@pytest.mark.parametrize(
    "task, schema",
    [
        ("translation", ENCODER_DECODER),
        ("language_modeling", LANGUAGE_MODEL),
        ("sentence_prediction", MASKED_LANGUAGE_MODEL),
    ],
)
def test_help_explains_every_option(task, schema, capsys, monkeypatch):
    """fairseq-train's own --help stops before the options of a model."""
    monkeypatch.setattr("sys.argv", ["fairseq_convattn", "--task", task])
    monkeypatch.setattr(overview, "parameters", lambda *types: 0)  # which takes seconds
    help_command()
    text = capsys.readouterr().out
    assert f"--task {task} " in text
    for option in dataclasses.fields(schema.config):
        described = f"--{option.name.replace('_', '-')}[ \n]"
        elsewhere = option.name == "_name" or str(option.default).startswith("${")  # a task's
        assert elsewhere or re.search(described, text), option.name


def test_warns_of_sentences_that_fairseq_would_drop(caplog):
    parse("dynamic_conv_tiny")
    assert "add --required-batch-size-multiple 1" in caplog.text
    caplog.clear()
    parse("dynamic_conv_tiny", "--required-batch-size-multiple", "1")
    assert not caplog.records


def test_every_architecture_builds():
    for arch, preset in ENCODER_DECODER_PRESETS.items():
        model = skeleton(Namespace(**preset), 10, 12)
        assert len(model.encoder.layers) == preset["encoder_layers"], arch
    for arch, preset in LANGUAGE_MODEL_PRESETS.items():
        model = language_model_skeleton(Namespace(**preset), 200_000, 200_000)
        assert arch in ARCH_CONFIG_REGISTRY
        assert len(model.decoder.layers) == preset["decoder_layers"], arch


@pytest.mark.parametrize(
    "arch, millions",
    [
        ("dynamic_conv_wmt_en_de_big", 213.2),
        ("lightweight_conv_wmt_en_de_big", 208.9),
        ("attention_wmt_en_de_big", 209.9),
    ],
)
def test_parameters_of_the_big_models(arch, millions):
    """With 32,768 shared types; the paper gives 213 M for the dynamic model."""
    assert round(parameters(arch) / 1e6, 1) == millions


@pytest.mark.parametrize(
    "arch, millions",
    [("dynamic_conv_cnn_dm", 87.6), ("lightweight_conv_cnn_dm", 86.5), ("attention_cnn_dm", 90.2)],
)
def test_parameters_of_the_summarization_models(arch, millions):
    """With 30,000 types in three tables; the paper gives 87, 86 and 90 M."""
    preset = Namespace(**ENCODER_DECODER_PRESETS[arch])
    assert count(skeleton(preset, 30_000, 30_000)) == millions


def test_bfloat16_trains_where_there_is_no_tpu(data, tmp_path, monkeypatch):
    def tpu(*flags) -> bool:
        return convert_namespace_to_omegaconf(parse("dynamic_conv_tiny", *flags)).common.tpu

    assert not tpu("--bf16") and tpu("--tpu")
    train(data, tmp_path, "--arch", "dynamic_conv_tiny", *SHRUNK, "--bf16", "--max-update", "1")
    assert (tmp_path / "checkpoint_last.pt").exists()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch_xla" or find(name))
    assert tpu("--bf16")
