"""Composite attention from command line and presets; errors in one line."""

from argparse import Namespace

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY
from options_of_models import configuration, lm_options, parse, refusal

from fairseq_convattn.architectures.presets import ENCODER_DECODER_PRESETS, LANGUAGE_MODEL_PRESETS
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
    assert (first.projection_kernel_size, last.projection_kernel_size) == (9, 5)
    assert cfg.encoder.mixers[1].attention_terms == ("content", "tisa")
    mixer = configuration("composite_attention_tiny").decoder.mixers[0]
    assert mixer.attention_terms == ("content", "fixed", "query")
    assert (mixer.attention_span, mixer.projection_kernel_size) == (8, 9)
    assert mixer.share_tables_across_heads is None and not mixer.share_tables_across_layers


@pytest.mark.parametrize(
    "arch, flags, positions",
    [
        ("composite_attention_tiny", "", False),
        ("tisa_tiny", "", False),
        ("attention_tiny", "", True),
        ("dynamic_conv_tiny", "", True),
        ("composite_attention_tiny", "--attention-terms content", True),
        ("composite_attention_tiny", "--attention-terms content,key_only", True),
        (
            "composite_attention_tiny",
            "--encoder-mixers composite,tisa,tisa,tisa --decoder-mixers tisa "
            "--attention-terms content",
            False,
        ),
        ("composite_attention_tiny", "--no-token-positional-embeddings false", True),
        ("attention_tiny", "--no-token-positional-embeddings", False),
        ("composite_attention_tiny", "--decoder-mixers attention", True),
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
        model = skeleton(args, 10, 10)
        return [layer.self_attn.terms for layer in model.encoder.layers]

    own, shared = tables(), tables(share_tables_across_layers="true")
    assert len({id(terms) for terms in own}) == 4
    assert shared[0] is shared[2] and shared[1] is shared[3] and shared[0] is not shared[1]


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--attention-terms ,", "--attention-terms: no terms, choose from content, fixed"),
        (
            "--attention-terms content,contents",
            "--attention-terms: unknown term 'contents'",
        ),
        ("--attention-terms fixed,fixed", "--attention-terms: 'fixed' twice"),
        ("--attention-span -1", "--attention-span: -1 is less than 0"),
        ("--tisa-kernels 0", "--tisa-kernels: 0 is less than 1"),
        ("--projection-kernel-size 4", "--projection-kernel-size: 4 taps cannot work"),
        ("--projection-kernel-size -1", "--projection-kernel-size: -1 is less than 1"),
        ("--attention-dropout 1.0", "--attention-dropout: composite attention needs less than 1"),
        ("--attention-dropout -0.5", "--attention-dropout: -0.5 is no probability"),
        ("--attention-terms content,fixed,", "--attention-terms: a name is missing in 'content,f"),
        ("--decoder-mixers tisa,,tisa,tisa", "--decoder-mixers: a name is missing in 'tisa,,tis"),
        ("--convolved-heads half", "--convolved-heads: nothing is convolved; give --query-key"),
        ("--projection-activation gelu", "--projection-activation: nothing is convolved"),
        ("--attention-span 0", "--attention-span: with a span of 0 --beyond-span clip gives all"),
        (
            "--attention-terms content,tisa --beyond-span zero",
            "--beyond-span: zero concerns the terms fixed, query, key, not content,tisa",
        ),
        (
            "--attention-terms fixed,tisa --query-key-projection dynamic",
            "--query-key-projection: the terms fixed,tisa look at neither queries nor keys",
        ),
        (
            "--value-projection dynamic --convolved-heads half --encoder-attention-heads 1",
            "--convolved-heads: 1 heads have no half",
        ),
        ("--share-tables-across-heads maybe", "--share-tables-across-heads: 'maybe' is neither"),
        ("--share-tables-across-layers 2", "--share-tables-across-layers: '2' is neither"),
        ("--no-token-positional-embeddings x", "--no-token-positional-embeddings: 'x' is neither"),
        ("--cross-self-attention", "--cross-self-attention: needs --decoder-mixers attention"),
    ],
)
def test_composite_attention_that_cannot_work_is_said_in_a_line(flags, message):
    assert refusal("composite_attention_tiny", *flags.split()).startswith(message)


CONVOLUTIONS = "the mixer lightweight or dynamic"
COMPOSITE = "the mixer composite or tisa"
HYBRID = "composite_attention_tiny --encoder-mixers dynamic --decoder-mixers attention"
ALIBI = "composite_attention_tiny --attention-terms content,alibi"


@pytest.mark.parametrize(
    "arch, options, needs",
    [
        *(
            ("attention_tiny", option, CONVOLUTIONS)
            for option in (
                *("--weight-dropout 0.3", "--weight-norm l2", "--input-dropout 0", "--conv-bias"),
                *("--renorm-padding", "--encoder-kernel-sizes 5", "--decoder-conv-dim 64"),
                *("--encoder-glu", "--decoder-glu false"),
            )
        ),
        (HYBRID, "--decoder-glu", CONVOLUTIONS),  # the encoder's alone is read
        ("tisa_lm_tiny --task language_modeling", "--weight-dropout 0.3", CONVOLUTIONS),
        ("attention_bert_tiny --task masked_lm", "--encoder-kernel-sizes 5", CONVOLUTIONS),
        ("dynamic_conv_bert_tiny --task masked_lm", "--tisa-kernels 5", COMPOSITE),
        *(
            (arch, option, COMPOSITE)
            for arch, option in (
                ("dynamic_conv_tiny", "--attention-terms content,tisa"),
                (HYBRID, "--attention-span 4"),
                ("dynamic_conv_tiny", "--beyond-span mask"),
                (HYBRID, "--query-key-projection dynamic"),
                ("dynamic_conv_tiny", "--projection-kernel-size 3"),
                (HYBRID, "--value-conv depthwise"),
                ("dynamic_conv_tiny", "--convolved-heads half"),
                (HYBRID, "--projection-activation gelu"),
                ("dynamic_conv_tiny", "--share-tables-across-heads"),
                (HYBRID, "--value-projection linear"),
                ("dynamic_conv_tiny", "--share-tables-across-layers false"),
            )
        ),
        ("tisa_tiny", "--attention-terms content", "the mixer composite; those of tisa are"),
        ("tisa_tiny", "--attention-span 4", "one of the terms fixed"),
        ("tisa_tiny", "--beyond-span zero", "one of the terms fixed"),
        (
            "composite_attention_tiny --attention-terms content,t5",
            "--beyond-span clip",
            "one of the terms fixed",
        ),
        ("composite_attention_tiny", "--tisa-kernels 3", "the term tisa"),
        (ALIBI, "--share-tables-across-heads", "a term that is learned"),
        (ALIBI, "--share-tables-across-layers", "a term that is learned"),
        ("composite_attention_tiny", "--projection-kernel-size 3", "--query-key-projection"),
        ("tisa_tiny --value-conv scaled --projection-kernel-size 3", "--attention-span 4", "one"),
    ],
)
def test_options_that_no_layer_reads_are_refused(arch, options, needs):
    message = f"{options.split()[0]}: no layer reads it; it needs {needs}"
    assert refusal(*arch.split(), *options.split()).startswith(message)


@pytest.mark.parametrize(
    "flags",
    [
        "composite_attention_tiny --encoder-mixers dynamic --attention-terms content,fixed",
        "dynamic_conv_tiny --decoder-mixers dynamic,dynamic,dynamic,tisa --tisa-kernels 3",
        "tisa_tiny --attention-terms tisa,content --share-tables-across-heads",
        "tisa_tiny --beyond-span mask --attention-span 4",
        "tisa_tiny --value-conv depthwise --attention-span 4",
        "tisa_tiny --value-projection dynamic --projection-kernel-size 3",
        "composite_attention_tiny --value-projection linear --value-conv none",
        "composite_attention_tiny --attention-terms content,alibi --beyond-span mask",
        "composite_attention_tiny --attention-terms key_only --share-tables-across-layers",
    ],
)
def test_options_that_some_layer_reads(flags):
    parse(*flags.split())


def test_a_presets_options_are_not_the_users():
    """As the albert presets share tables, which no convolution has."""
    parse("dynamic_conv_albert_base", "--task", "masked_lm")
    for arch, preset in (
        ("dynamic_conv_tiny", ENCODER_DECODER_PRESETS),
        ("dynamic_conv_lm_tiny", LANGUAGE_MODEL_PRESETS),
    ):
        args = Namespace(arch=arch, **preset[arch])
        for _ in range(2):  # as fairseq parses a command line, and as it builds the model
            ARCH_CONFIG_REGISTRY[arch](args)
        assert args.attention_terms == "content,fixed,query"


@pytest.mark.parametrize(
    "option, value, known",
    [
        ("attention_terms", "nonsense", "content, fixed"),
        ("beyond_span", "nonsense", "clip, zero, mask"),
        ("value_conv", "nonsense", "none, depthwise"),
    ],
)
@pytest.mark.parametrize("mixer", ["dynamic", "attention", "tisa"])
def test_names_must_be_known_even_where_no_layer_reads_them(option, value, known, mixer):
    message = f"--{option.replace('_', '-')}: unknown .*'nonsense', choose from {known}"
    with pytest.raises(ValueError, match=message):
        skeleton(Namespace(encoder_mixers=mixer, decoder_mixers=mixer, **{option: value}), 9, 9)


def test_a_causal_stack_takes_any_number_of_taps():
    flags = ("--value-conv", "depthwise", "--projection-kernel-size")
    arch = ("composite_attention_lm_tiny", *flags)
    assert lm_options(*arch, "4").decoder_mixers[0].projection_kernel_size == 4
    message = "--projection-kernel-size: -1 is less than 1"
    assert refusal(*arch, "-1", "--task", "language_modeling") == message
