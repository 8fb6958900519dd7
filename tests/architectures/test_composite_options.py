"""Composite attention from command line and presets."""

from argparse import Namespace

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY
from options_of_models import configuration, parse

from fairseq_convattn.architectures import ConvAttnModel
from fairseq_convattn.architectures.skeleton import skeleton


def test_composite_attention_by_its_options():
    flags = (
        *("--attention-terms", "content, fixed,key", "--attention-span", "4"),
        *("--beyond-span", "zero", "--tisa-kernels", "3", "--share-tables-across-heads", "false"),
        *("--share-tables-across-layers", "--query-key-projection", "separable"),
        *("--value-projection", "dynamic", "--projection-activation", "gelu"),
        *("--convolved-heads", "half", "--value-conv", "scaled"),
    )
    cfg = configuration(
        "composite_attention_tiny", *flags, "--encoder-mixers", "composite,tisa,tisa,attention"
    )
    first, last = cfg.encoder.mixers[0], cfg.decoder.mixers[-1]
    for mixer in (first, last):
        assert mixer.attention_terms == ("content", "fixed", "key")
        assert (mixer.attention_span, mixer.beyond_span, mixer.tisa_kernels) == (4, "zero", 3)
        assert mixer.share_tables_across_heads is False
        assert mixer.share_tables_across_layers is True
        assert (mixer.query_key_projection, mixer.value_projection) == ("separable", "dynamic")
        assert (mixer.projection_activation, mixer.convolved_heads) == ("gelu", "half")
        assert mixer.value_conv == "scaled"
    assert (first.projection_taps, last.projection_taps) == (9, 5)
    assert cfg.encoder.mixers[1].attention_terms == ("content", "tisa")
    mixer = configuration("composite_attention_tiny").decoder.mixers[0]
    assert mixer.attention_terms == ("content", "fixed", "query")
    assert (mixer.attention_span, mixer.projection_taps) == (8, 9)
    assert mixer.share_tables_across_heads is None and not mixer.share_tables_across_layers


@pytest.mark.parametrize(
    "arch, flags, positions",
    [
        ("composite_attention_tiny", "", False),
        ("tisa_tiny", "", False),
        ("attention_tiny", "", True),
        ("composite_attention_tiny", "--attention-terms content", True),
        ("composite_attention_tiny", "--no-token-positional-embeddings false", True),
        ("dynamic_conv_tiny", "--encoder-mixers dynamic,dynamic,composite,tisa", True),
        (
            "dynamic_conv_tiny",
            "--encoder-mixers dynamic,dynamic,dynamic,composite --decoder-mixers tisa",
            False,
        ),
    ],
)
def test_position_terms_replace_absolute_positions(arch, flags, positions):
    cfg = configuration(arch, *flags.split())
    assert cfg.no_token_positional_embeddings is not positions


def test_tables_of_all_layers_are_one_on_demand():
    def tables(**options):
        args = Namespace(encoder_mixers="tisa,composite,tisa,composite", **options)
        args.encoder_layers = 4
        model = skeleton(ConvAttnModel, args, 10)
        return [layer.self_attn.terms for layer in model.encoder.layers]

    own, shared = tables(), tables(share_tables_across_layers="true")
    assert len({id(terms) for terms in own}) == 4
    assert shared[0] is shared[2] and shared[1] is shared[3] and shared[0] is not shared[1]


def test_a_presets_options_are_not_the_users():
    """As the albert presets share tables, which no convolution has."""
    parse("dynamic_conv_albert_base", "--task", "masked_lm", "--criterion", "masked_lm")
    for arch in ("dynamic_conv_tiny", "dynamic_conv_lm_tiny"):
        args = Namespace(arch=arch)
        for _ in range(2):  # as fairseq parses a command line, and as it builds the model
            ARCH_CONFIG_REGISTRY[arch](args)
        assert args.attention_terms == "content,fixed,query"
