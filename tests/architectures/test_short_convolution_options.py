"""Short convolutions from command line and presets."""

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
