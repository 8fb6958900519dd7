"""From command line and presets to the mixer of every layer; errors in one line."""

from argparse import Namespace

import pytest
from conftest import PLUGIN
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer_lm import (
    transformer_lm_baevski_gbw,
    transformer_lm_baevski_wiki103,
)

from fairseq_convattn.__main__ import main as help_command
from fairseq_convattn.architectures.config import LANGUAGE_MODEL, complete
from fairseq_convattn.architectures.language_model import language_model_options
from fairseq_convattn.architectures.overview import parameters
from fairseq_convattn.architectures.presets import ENCODER_DECODER_PRESETS, LANGUAGE_MODEL_PRESETS
from fairseq_convattn.architectures.skeleton import language_model_skeleton, skeleton
from fairseq_convattn.architectures.translation import nested_config

ADAPTIVE = (
    *("adaptive_input", "adaptive_softmax_cutoff", "adaptive_input_cutoff"),
    *("adaptive_softmax_dropout", "tie_adaptive_weights", "tie_adaptive_proj"),
)
BAEVSKI = (
    *("decoder_layers", "decoder_ffn_embed_dim", "decoder_attention_heads"),
    *("decoder_normalize_before", "no_decoder_final_norm", "dropout", "attention_dropout"),
    "activation_dropout",
    *("adaptive_softmax_factor", "adaptive_input_factor", "share_decoder_input_output_embed"),
)


def parse(arch, *flags):
    """What fairseq-train makes of a command line."""
    parser = options.get_training_parser()
    arguments = ["data", "--user-dir", str(PLUGIN), "--arch", arch, *flags]
    return options.parse_args_and_arch(parser, arguments)


def configuration(arch, *flags):
    """fairseq's nested configuration of the model that fairseq-train builds."""
    cfg = convert_namespace_to_omegaconf(parse(arch, *flags)).model
    ARCH_CONFIG_REGISTRY[arch](cfg)
    return nested_config(complete(cfg))


def parse_lm(arch, *flags):
    return parse(arch, "--task", "language_modeling", *flags)


def lm_options(arch, *flags):
    if not arch.endswith("tiny") and "none" not in flags:
        flags = (*flags, "--criterion", "adaptive_loss")
    return language_model_options(complete(parse_lm(arch, *flags), LANGUAGE_MODEL))


def count(model) -> float:
    return round(sum(p.numel() for p in model.parameters()) / 1e6, 1)


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
        ("--encoder-layers -1", "--encoder-layers: -1 layers cannot be built"),
        ("--encoder-conv-dim -4", "--encoder-conv-dim: a width of -4 cannot work"),
        ("--weight-dropout 1.5", "--weight-dropout: 1.5 is no probability"),
        ("--encoder-kernel-sizes 0", "--encoder-kernel-sizes: a kernel of 0 taps cannot work"),
        ("--decoder-kernel-sizes -3", "--decoder-kernel-sizes: a kernel of -3 taps cannot work"),
        (
            "--encoder-attention-heads 5",
            "--encoder-attention-heads: 5 heads do not divide the width 128",
        ),
        ("--decoder-attention-heads 0", "--decoder-attention-heads: 0 heads do not divide"),
        ("--decoder-conv-dim 30", "--decoder-attention-heads: 4 heads do not divide the width 30"),
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
    ],
)
@pytest.mark.parametrize("arch", ["dynamic_conv_tiny", "convattn"])
def test_what_cannot_work_is_said_in_a_line_before_anything_is_loaded(arch, flags, message):
    base = (
        "--encoder-embed-dim 128 --encoder-layers 4 --decoder-layers 4 "
        "--encoder-attention-heads 4 --decoder-attention-heads 4"
    )
    with pytest.raises(SystemExit) as error:
        parse(arch, *base.split(), *flags.split())
    assert str(error.value).startswith(f"error: {message}")
    assert "\n" not in str(error.value)


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
        ("--attention-terms content,contents", "--attention-terms: unknown 'contents', choose"),
        ("--attention-terms fixed,fixed", "--attention-terms: 'fixed' twice"),
        ("--attention-span -1", "--attention-span: a span of -1 cannot work"),
        ("--tisa-kernels 0", "--tisa-kernels: 0 kernels cannot work"),
        ("--projection-kernel-size 4", "--projection-kernel-size: 4 taps cannot work"),
        ("--projection-kernel-size -1", "--projection-kernel-size: -1 taps cannot work"),
        ("--projection-kernel-size 0", "--projection-kernel-size: 0 taps cannot work"),
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
    with pytest.raises(SystemExit) as error:
        parse("composite_attention_tiny", *flags.split())
    assert str(error.value).startswith(f"error: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "arch, options, message",
    [
        *(
            (arch, option, f"{option.split()[0]}: no layer reads it; it needs the mixer composite")
            for option in (
                *("--attention-terms content,tisa", "--attention-span 4", "--beyond-span mask"),
                *("--tisa-kernels 5", "--query-key-projection dynamic"),
                *("--projection-kernel-size 3", "--value-conv depthwise", "--convolved-heads half"),
                *("--projection-activation gelu", "--share-tables-across-heads"),
                *("--value-projection linear", "--share-tables-across-layers false"),
            )
            for arch in (
                "dynamic_conv_tiny",
                "composite_attention_tiny --encoder-mixers dynamic --decoder-mixers attention",
            )
        ),
        (
            "tisa_tiny",
            "--attention-terms content",
            "--attention-terms: no layer reads it; it needs the mixer composite; those of tisa are",
        ),
        *(
            (arch, option, f"{option.split()[0]}: no layer reads it; it needs one of the terms fi")
            for option in ("--attention-span 4", "--beyond-span clip")
            for arch in ("tisa_tiny", "composite_attention_tiny --attention-terms content,t5")
        ),
        ("tisa_tiny", "--beyond-span zero", "--beyond-span: no layer reads it; it needs one of"),
        (
            "composite_attention_tiny",
            "--tisa-kernels 3",
            "--tisa-kernels: no layer reads it; it needs the term tisa",
        ),
        *(
            (
                "composite_attention_tiny --attention-terms content,alibi",
                option,
                f"{option}: no layer reads it; it needs a term that is learned",
            )
            for option in ("--share-tables-across-heads", "--share-tables-across-layers")
        ),
        (
            "composite_attention_tiny",
            "--projection-kernel-size 3",
            "--projection-kernel-size: no layer reads it; it needs --query-key-projection",
        ),
        (
            "tisa_tiny --value-conv scaled --projection-kernel-size 3",
            "--attention-span 4",
            "--attention-span: no layer reads it",
        ),
    ],
)
def test_options_that_no_layer_reads_are_refused(arch, options, message):
    with pytest.raises(SystemExit) as error:
        parse(*arch.split(), *options.split())
    assert str(error.value).startswith(f"error: {message}")
    assert "\n" not in str(error.value)


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
    message = f"--{option.replace('_', '-')}: unknown 'nonsense', choose from {known}"
    with pytest.raises(ValueError, match=message):
        skeleton(Namespace(encoder_mixers=mixer, decoder_mixers=mixer, **{option: value}), 9, 9)


def test_a_causal_stack_takes_any_number_of_taps():
    flags = ("--value-conv", "depthwise", "--projection-kernel-size")
    arch = ("composite_attention_lm_tiny", *flags)
    assert lm_options(*arch, "4").decoder_mixers[0].projection_kernel_size == 4
    with pytest.raises(SystemExit) as error:
        parse_lm(*arch, "-1")
    message = "error: --projection-kernel-size: -1 taps cannot work, give at least 1"
    assert str(error.value) == message


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
            "there are convattn_mlm and what python -m fairseq_convattn --task masked_lm lists",
        ),
        ("translation", "convattn_lm", "convattn_lm is for --task language_modeling; for transl"),
        ("language_modeling", "tisa_bert_tiny", "tisa_bert_tiny is for --task masked_lm and sen"),
    ],
)
def test_an_architecture_for_other_tasks(task, arch, message):
    with pytest.raises(SystemExit) as error:
        parse(arch, "--task", task)
    assert str(error.value).startswith(f"error: --arch: {message}")
    assert "\n" not in str(error.value)


def test_language_model_presets_have_the_papers_shapes():
    for arch, kernels in (
        ("dynamic_conv_lm_gbw", [15] * 2 + [31] * 4 + [63] * 11),
        ("lightweight_conv_lm_wiki103", [15] * 2 + [31] * 4 + [63] * 10),
        ("dynamic_conv_lm_tiny", [3, 7, 15, 31]),
    ):
        assert [m.kernel_size for m in lm_options(arch).decoder_mixers] == kernels
    options = lm_options("dynamic_conv_lm_gbw")
    mixer = options.decoder_mixers[0]
    assert (options.dropout, mixer.attention_dropout) == (0.1, 0.1)
    assert (mixer.glu, mixer.num_heads, mixer.weight_dropout, mixer.input_dropout) == (
        *(True, 16, 0.1, 0.1),
    )
    options = lm_options("dynamic_conv_lm_tiny")
    mixer = options.decoder_mixers[0]
    assert (options.decoder_embed_dim, options.decoder_ffn_embed_dim) == (128, 256)
    assert (options.decoder_output_dim, mixer.num_heads) == (128, 4)
    assert (options.dropout, mixer.weight_dropout, mixer.input_dropout) == (0.3, 0.1, 0)
    assert options.decoder_normalize_before and not options.no_decoder_final_norm
    assert not options.adaptive_input


@pytest.mark.parametrize(
    "ours, fairseqs, ours_alone",
    [
        ("attention_lm_wiki103", transformer_lm_baevski_wiki103, ()),
        # fairseq's preset has 12 blocks without adaptive input, which its users ask for
        (
            "attention_lm_gbw",
            transformer_lm_baevski_gbw,
            ("decoder_layers", "activation_dropout", *ADAPTIVE),
        ),
    ],
)
def test_attention_language_models_are_those_of_baevski_and_auli(ours, fairseqs, ours_alone):
    expected, options = Namespace(), lm_options(ours)
    fairseqs(expected)
    for name in {*BAEVSKI, *ADAPTIVE} - {*ours_alone}:
        value = getattr(expected, name)
        if name.endswith("_cutoff"):
            value = [int(cutoff) for cutoff in value.split(",")]
        assert getattr(options, name) == value, name
    assert options.decoder_layers == 16 and options.decoder_embed_dim == 1024


@pytest.mark.parametrize("arch", LANGUAGE_MODEL_PRESETS)
@pytest.mark.parametrize("layers", [2, 20])
def test_any_number_of_layers_of_a_language_model(arch, layers):
    mixers = lm_options(arch, "--decoder-layers", str(layers)).decoder_mixers
    assert len(mixers) == layers and mixers[1].kernel_size in (7, 15)
    assert layers == 2 or mixers[-1].kernel_size in (31, 63)


def test_what_a_language_models_preset_switches_on_can_be_switched_off():
    flags = (
        *("--adaptive-input", "false", "--adaptive-softmax-cutoff", "none"),
        *("--tie-adaptive-weights", "false", "--decoder-normalize-before", "false"),
    )
    options = lm_options("dynamic_conv_lm_wiki103", *flags)
    assert not (options.adaptive_input or options.adaptive_softmax_cutoff)
    assert not (options.tie_adaptive_weights or options.decoder_normalize_before)


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--decoder-mixers dynamics", "--decoder-mixers: unknown mixer 'dynamics'"),
        ("--decoder-kernel-sizes 3,7", "--decoder-kernel-sizes: 2 values for 4 layers"),
        ("--adaptive-input", "--adaptive-input: needs --adaptive-input-cutoff"),
        ("--adaptive-softmax-factor 0", "--adaptive-softmax-factor: 0.0 is less than 1"),
        (
            "--share-decoder-input-output-embed --decoder-input-dim 8",
            "--share-decoder-input-output-embed: needs equal --decoder-output-dim and --decoder-in",
        ),
        ("--adaptive-input data", "--adaptive-input: 'data' is neither true nor false"),
        ("--adaptive-softmax-cutoff 9,x", "--adaptive-softmax-cutoff: '9,x' must be whole numbers"),
        ("--adaptive-softmax-cutoff 9,8", "--adaptive-softmax-cutoff: '9,8' must rise"),
        ("--adaptive-softmax-cutoff 0", "--adaptive-softmax-cutoff: '0' must rise"),
        ("--tie-adaptive-weights", "--tie-adaptive-weights: needs --adaptive-input and"),
        (
            "--tie-adaptive-weights --adaptive-softmax-cutoff 8 --adaptive-input "
            "--adaptive-input-cutoff 9",
            "--tie-adaptive-weights: needs equal --adaptive-softmax-cutoff and --adaptive-input-cu",
        ),
        (
            "--tie-adaptive-weights --adaptive-softmax-cutoff 8 --adaptive-input "
            "--adaptive-input-factor 2",
            "--tie-adaptive-weights: needs equal --adaptive-softmax-factor and --adaptive-input-fa",
        ),
        (
            "--adaptive-input --adaptive-input-cutoff 8 --share-decoder-input-output-embed",
            "--share-decoder-input-output-embed: works on a table, not --adaptive-input",
        ),
        (
            "--character-embeddings --share-decoder-input-output-embed",
            "--share-decoder-input-output-embed: works on a table, not --character-embeddings",
        ),
        (
            "--character-embeddings --adaptive-input --adaptive-input-cutoff 8",
            "--character-embeddings: cannot be had with --adaptive-input",
        ),
        ("--character-filters [(1,)]", "--character-filters: '[(1,)]' must be (width, channels)"),
        ("--character-filters exit()", "--character-filters: 'exit()' must be (width, channels)"),
        ("--criterion adaptive_loss", "--criterion: adaptive_loss needs --adaptive-softmax-cutoff"),
        ("--adaptive-softmax-cutoff 8", "--criterion: cross_entropy cannot train an adaptive"),
    ],
)
def test_language_models_that_cannot_work(flags, message):
    with pytest.raises(SystemExit) as error:
        parse_lm("dynamic_conv_lm_tiny", *flags.split())
    assert str(error.value).startswith(f"error: {message}")
    assert "\n" not in str(error.value)


def test_cutoffs_beyond_the_dictionary():
    preset = Namespace(**LANGUAGE_MODEL_PRESETS["dynamic_conv_lm_wiki103"])
    with pytest.raises(ValueError, match="60000 is beyond the dictionary's 1000 types"):
        language_model_skeleton(preset, 1000, 1000)
    options = Namespace(adaptive_input=True, adaptive_input_cutoff=[50], decoder_layers=1)
    with pytest.raises(ValueError, match="--adaptive-input-cutoff: 50 is beyond"):
        language_model_skeleton(options, 49, 99)


@pytest.mark.parametrize("option", ["tie_adaptive_weights", "share_decoder_input_output_embed"])
def test_nothing_is_shared_with_a_smaller_output_dictionary(option):
    options = Namespace(**{option: True}, decoder_layers=1)
    if option == "tie_adaptive_weights":
        options.adaptive_input, options.adaptive_softmax_cutoff = True, [8]
    language_model_skeleton(options, 20, 20)
    with pytest.raises(ValueError, match="needs the whole dictionary as output"):
        language_model_skeleton(options, 20, 15)


def test_character_filters_from_yaml_and_python():
    options = Namespace(character_embeddings=True, character_filters=[[1, 8]], decoder_layers=1)
    model = language_model_skeleton(options, 20, 20)
    assert [c.out_channels for c in model.decoder.embed_tokens.convolutions] == [8]


def test_unknown_norms_are_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit):
        parse("dynamic_conv_tiny", "--weight-norm", "l3")
    assert "--weight-norm: invalid choice: 'l3'" in capsys.readouterr().err


def test_a_model_built_from_python_gets_the_same_error():
    with pytest.raises(ValueError, match="--encoder-kernel-sizes"):
        skeleton(Namespace(encoder_kernel_sizes=[2]), 10, 10)


def test_help_explains_every_option(capsys, monkeypatch):
    """fairseq-train's own --help stops before the options of a model."""
    monkeypatch.setattr("sys.argv", ["fairseq_convattn"])
    help_command()
    text = " ".join(capsys.readouterr().out.split())
    for explained in (
        *("--encoder-mixers", "--decoder-kernel-sizes", "--encoder-glu", "--weight-dropout"),
        *("--input-dropout", "--conv-bias", "--renorm-padding", "l2: W / (|W|_2 + 1e-6)"),
        *("lightweight, dynamic, attention", "dynamic_conv_X", "`wmt_en_de_big`"),
        "(default: true where every stack has a layer with a position term, else false)",
    ):
        assert explained in text


def test_help_explains_language_models(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fairseq_convattn", "--task", "language_modeling"])
    help_command()
    text = " ".join(capsys.readouterr().out.split())
    for explained in (
        *("--decoder-mixers", "--adaptive-input", "--tie-adaptive-proj", "--character-filters"),
        *(
            "convattn_lm",
            "dynamic_conv_X",
            "`lm_gbw`",
            "true or false: if set, uses adaptive input",
        ),
    ):
        assert explained in text
    assert "--encoder" not in text


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


@pytest.mark.parametrize(
    "arch, types, millions",
    [
        ("dynamic_conv_lm_gbw", 793_471, 339.1),
        ("attention_lm_wiki103", 267_744, 246.9),
    ],
)
def test_parameters_of_the_language_models(arch, types, millions):
    """With the words of Billion Word (the paper's "800k") and of WikiText-103. Wu et al. 2019
    give 339 M for the first, Baevski and Auli 2019 247 M for the second."""
    preset = Namespace(**LANGUAGE_MODEL_PRESETS[arch])
    assert count(language_model_skeleton(preset, types, types)) == millions
