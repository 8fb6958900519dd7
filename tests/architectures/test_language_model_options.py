"""Language models from command line and presets."""

from argparse import Namespace

import pytest
from fairseq.models.transformer_lm import (
    transformer_lm_baevski_gbw,
    transformer_lm_baevski_wiki103,
)
from options_of_models import count, lm_options

from fairseq_convattn.architectures import ConvAttnLanguageModel
from fairseq_convattn.architectures.presets import LANGUAGE_MODEL_PRESETS
from fairseq_convattn.architectures.skeleton import skeleton

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


def test_what_a_language_models_preset_switches_on_can_be_switched_off():
    flags = (
        *("--adaptive-input", "false", "--adaptive-softmax-cutoff", "none"),
        *("--tie-adaptive-weights", "false", "--decoder-normalize-before", "false"),
    )
    options = lm_options("dynamic_conv_lm_wiki103", *flags)
    assert not (options.adaptive_input or options.adaptive_softmax_cutoff)
    assert not (options.tie_adaptive_weights or options.decoder_normalize_before)


def test_cutoffs_beyond_the_dictionary():
    preset = Namespace(**LANGUAGE_MODEL_PRESETS["dynamic_conv_lm_wiki103"])
    with pytest.raises(ValueError, match="60000 is beyond the dictionary's 1000 types"):
        skeleton(ConvAttnLanguageModel, preset, 1000)
    options = Namespace(adaptive_input=True, adaptive_input_cutoff=[50], decoder_layers=1)
    with pytest.raises(ValueError, match="--adaptive-input-cutoff: 50 is beyond"):
        skeleton(ConvAttnLanguageModel, options, 49, 99)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"adaptive_input": True, "adaptive_input_factor": 8}, "--adaptive-input-factor: 8 leaves"),
        ({"adaptive_softmax_factor": 8}, "--adaptive-softmax-factor: 8 leaves the last of 3"),
    ],
)
def test_clusters_have_channels(options, reason):
    given = {"adaptive_softmax_cutoff": [9, 20], "decoder_embed_dim": 32, **options}
    with pytest.raises(ValueError, match=reason):
        skeleton(ConvAttnLanguageModel, Namespace(**given, decoder_layers=1), 30)
    fitting = {"adaptive_softmax_factor": 2.0, "adaptive_input_factor": 2.0}
    skeleton(ConvAttnLanguageModel, Namespace(**given | fitting, decoder_layers=1), 30)


@pytest.mark.parametrize("option", ["tie_adaptive_weights", "share_decoder_input_output_embed"])
def test_nothing_is_shared_with_a_smaller_output_dictionary(option):
    options = Namespace(**{option: True}, decoder_layers=1)
    if option == "tie_adaptive_weights":
        options.adaptive_input, options.adaptive_softmax_cutoff = True, [8]
    skeleton(ConvAttnLanguageModel, options, 20)
    with pytest.raises(ValueError, match="mutually exclusive with --output-dictionary-size"):
        skeleton(ConvAttnLanguageModel, options, 20, 15)


def test_kernel_sizes_from_python_are_one_per_layer():
    """A tuple, too: a preset's is cut or repeated, a user's is not."""
    for sizes in ([3, 7], (3, 7)):
        with pytest.raises(ValueError, match="--decoder-kernel-sizes: 2 values for 4 layers"):
            skeleton(
                ConvAttnLanguageModel, Namespace(decoder_kernel_sizes=sizes, decoder_layers=4), 20
            )


def test_character_filters_from_yaml_and_python():
    options = Namespace(character_embeddings=True, character_filters=[[1, 8]], decoder_layers=1)
    model = skeleton(ConvAttnLanguageModel, options, 20)
    assert [c.out_channels for c in model.decoder.embed_tokens.convolutions] == [8]


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
    assert count(skeleton(ConvAttnLanguageModel, preset, types)) == millions


@pytest.mark.parametrize("flag", ["checkpoint_activations", "offload_activations"])
def test_activations_are_checkpointed(flag):
    model = skeleton(ConvAttnLanguageModel, Namespace(**{flag: True}), 50)
    assert "checkpointed" in str(model.decoder.layers[0].forward)
