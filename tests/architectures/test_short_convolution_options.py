"""Short convolutions from command line and presets; errors in one line."""

import pytest
from options_of_models import configuration, lm_options, parse_lm, refusal

from fairseq_convattn.architectures.overview import preset_options


def test_short_convolutions_by_their_options():
    flags = (
        *("--short-convolution", "headwise", "--short-convolution-on", "vo"),
        *("--short-convolution-taps", "3", "--short-convolution-window", "causal"),
    )
    cfg = configuration("composite_attention_tiny", *flags, "--encoder-mixers", "attention")
    for mixer in (cfg.encoder.mixers[0], cfg.decoder.mixers[-1]):
        assert (mixer.short_convolution, mixer.short_convolution_on) == ("headwise", "vo")
        assert (mixer.short_convolution_taps, mixer.short_convolution_window) == (3, "causal")


def test_architectures_have_those_of_low_rank():
    mixer = configuration("short_conv_tiny").encoder.mixers[0]
    assert (mixer.mixer, mixer.short_convolution) == ("attention", "low_rank")
    assert (mixer.short_convolution_on, mixer.short_convolution_taps) == ("qkv", 4)
    assert (mixer.short_convolution_rank, mixer.short_convolution_window) == (15, "centred")
    flags = ("--short-convolution", "static", "--decoder-mixers", "tisa")
    mixer = lm_options("short_conv_lm_tiny", *flags).decoder_mixers[0]
    assert (mixer.mixer, mixer.short_convolution) == ("tisa", "static")
    assert lm_options("short_conv_lm_gbw").decoder_layers == 16
    assert "--short-convolution low_rank" in preset_options("short_conv_bert_tiny")


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--short-convolution static --short-convolution-on q,k", "-on: 'q,k' must be some"),
        ("--short-convolution static --short-convolution-on qq", "-on: 'qq' has a letter twice"),
        ("--short-convolution static --short-convolution-taps 0", "-taps: 0 is less than 1"),
        ("--short-convolution-on q", "-on: no layer reads it; it needs --short-convolution"),
        ("--short-convolution-taps 3", "-taps: no layer reads it; it needs --short-convolution"),
        (
            "--short-convolution static --short-convolution-rank 3",
            "-rank: no layer reads it; it needs --short-convolution low_rank",
        ),
        (
            "--short-convolution static --encoder-mixers dynamic --short-convolution-window causal",
            "-window: no layer reads it; it needs an encoder with --short-convolution",
        ),
        (
            "--short-convolution static --encoder-mixers composite --attention-terms fixed",
            "-on: the terms fixed do not look at",
        ),
        (
            "--short-convolution static --cross-self-attention",
            "--short-convolution: goes with no --cross-self-attention",
        ),
    ],
)
def test_refused(flags, message):
    assert message in refusal("attention_tiny", *flags.split())


def test_convolutions_do_not_read_them():
    with pytest.raises(SystemExit, match="it needs the mixer attention or composite or tisa"):
        parse_lm("dynamic_conv_lm_tiny", "--short-convolution", "static")
