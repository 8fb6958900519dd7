"""Which configurations ``build_mixer`` refuses."""

import numpy as np
import pytest

from fairseq_convattn.mixers import MixerConfig, build_mixer


@pytest.mark.parametrize(
    ("mixer", "options", "message"),
    [
        ("dynamc", {}, "mixer: unknown 'dynamc', choose from lightweight, dynamic"),
        ("dynamic", {"num_heads": 0}, "num_heads: must be a whole number of at least 1, not 0"),
        ("dynamic", {"num_heads": 2.0}, "num_heads: must be a whole number"),
        ("composite", {"num_heads": 5}, "num_heads: 5 heads do not divide the width 64"),
        ("composite", {"num_heads": 1, "convolved_heads": "half"}, "needs an even number of heads"),
        ("attention", {"embed_dim": 0}, "embed_dim: must be a whole number of at least 1, not 0"),
        ("attention", {"short_convolution": "lowrank"}, "short_convolution: unknown 'lowrank'"),
        ("attention", {"short_convolution": None}, "short_convolution: unknown None, choose"),
        ("attention", {"short_convolution_on": "xyz"}, "short_convolution_on: must be some of"),
        ("attention", {"short_convolution_taps": 0}, "short_convolution_taps: must be at least 1"),
        ("composite", {"short_convolution_rank": 0}, "short_convolution_rank: must be at least 1"),
        ("tisa", {"short_convolution_window": "left"}, "short_convolution_window: unknown 'left'"),
        (
            "attention",
            {"self_attention": False, "short_convolution": "low_rank"},
            "short_convolution: mutually exclusive with --cross-self-attention",
        ),
        (
            "composite",
            {"attention_terms": ("fixed",), "short_convolution": "low_rank"},
            "short_convolution_on: the terms fixed do not use q and k; give v",
        ),
        ("composite", {"attention_terms": ("content", "fixd")}, "unknown term 'fixd'"),
        ("composite", {"attention_terms": "content,fixed"}, "must be a tuple of names"),
        ("composite", {"attention_terms": None}, "must be a tuple of names, not None"),
        ("composite", {"attention_terms": (1,)}, "must be a tuple of names, not .1,."),
        ("tisa", {"attention_terms": None}, "attention_terms: tisa has .*, not None"),
        ("tisa", {"attention_terms": ("tisa",)}, "attention_terms: tisa has .'content', 'tisa'.,"),
        ("composite", {"attention_dropout": 1.0}, "attention_dropout: must be less than 1"),
        ("composite", {"value_conv": None}, "value_conv: unknown None, choose from none, depth"),
        ("dynamic", {"tap_norm": "soft"}, "tap_norm: unknown 'soft'"),
        ("dynamic", {"tap_norm": "tanh", "renorm_padding": True}, "renorm_padding: works with"),
        ("dynamic", {"glu": "false"}, "glu: must be True or False, not 'false'"),
        ("dynamic", {"kernel_size": 0}, "kernel_size: must be a whole number of at least 1"),
        ("lightweight", {"kernel_size": [3, 5]}, "kernel_size: must be a whole number"),
        ("dynamic", {"conv_dim": 30}, "conv_dim: 4 heads do not divide the width 30"),
    ],
)
def test_refused(mixer, options, message):
    with pytest.raises(ValueError, match=message):
        build_mixer(
            MixerConfig(mixer, **{"embed_dim": 64, "num_heads": 4, "causal": True} | options)
        )


def test_lists_and_numpys_numbers_are_taken():
    build_mixer(MixerConfig("composite", 64, 4, causal=True, attention_terms=["content", "fixed"]))
    build_mixer(MixerConfig("tisa", 64, 4, causal=True, attention_terms=["tisa", "content"]))
    build_mixer(MixerConfig("dynamic", 64, 4, causal=True, conv_dim=np.int64(32)))
    build_mixer(MixerConfig("dynamic", 64, 4, causal=True, short_convolution="not read"))
