"""Short convolutions from command line and presets."""

import pytest
from options_of_models import configuration, lm_options

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


@pytest.mark.parametrize("where", ["12", "1"])
def test_those_of_the_feed_forward_block_alone(where):
    flags = ("--short-convolution-on", where)
    assert configuration("short_conv_tiny", *flags).decoder.mixers[0].short_convolution_on == where


def test_an_architecture_with_them_needs_a_layer_that_has_them():
    with pytest.raises(
        SystemExit, match="--arch: it sets --short-convolution, but no layer reads it"
    ):
        lm_options("short_conv_lm_tiny", "--decoder-mixers", "dynamic")
    assert lm_options("short_conv_lm_tiny", "--decoder-mixers", "dynamic,attention,dynamic,dynamic")


def test_all_projections_that_the_terms_do_not_use_are_named():
    flags = ("--attention-terms", "fixed", "--short-convolution", "static")
    with pytest.raises(SystemExit, match="the terms fixed do not use q and k; give v$"):
        lm_options("composite_attention_lm_tiny", *flags)


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
