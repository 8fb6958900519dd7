"""The named architectures: shapes of the papers, dropouts of fairseq's presets, as data."""

from collections.abc import Mapping
from typing import Any

from ..mixers.config import CONVOLUTIONS


class Repeated(tuple):
    """Kernel sizes for any number of layers: the first ones, or the last one repeated."""


def _shape(width: int, ffn: int, heads: int) -> dict:
    return {
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": ffn,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
    }


def _dropouts(dropout: float, attention: float, inputs: float = 0.1) -> dict:
    return {
        "dropout": dropout,
        "attention_dropout": attention,
        "weight_dropout": attention,
        "input_dropout": inputs,
    }


_BASE, _BIG = _shape(512, 2048, 8), _shape(1024, 4096, 16)
_NO_GLU = {"encoder_glu": "false", "decoder_glu": "false"}
_CONVOLUTION_LAYERS = {"encoder_layers": 7, "decoder_layers": 6}
_ATTENTION_LAYERS = {"encoder_layers": 6, "decoder_layers": 6}

# Translation and summarization.
ENCODER_DECODER_SHAPES = {
    "tiny": {
        **_shape(128, 256, 4),
        **_dropouts(0.3, 0.1, inputs=0.0),
        "encoder_layers": 4,
        "decoder_layers": 4,
    },
    "iwslt_de_en": {**_shape(512, 1024, 4), **_dropouts(0.3, 0.1, inputs=0.0), **_NO_GLU},
    "wmt_en_de": {**_BASE, **_dropouts(0.1, 0.0)},
    "wmt_en_de_big": {**_BIG, **_dropouts(0.3, 0.1)},
    "wmt_en_fr_big": {**_BIG, **_dropouts(0.1, 0.1)},
    # fairseq's lightconv_wmt_zh_en_big; an author gives 0.25 for attention (fairseq#534)
    "wmt_zh_en_big": {**_BIG, **_dropouts(0.2, 0.2)},
    # ours: neither gives dropouts for this one
    "cnn_dm": {**_BASE, **_dropouts(0.1, 0.1), **_NO_GLU},
}


def _lm_shape(width: int, ffn: int, heads: int, layers: int) -> dict:
    return {
        "decoder_embed_dim": width,
        "decoder_ffn_embed_dim": ffn,
        "decoder_attention_heads": heads,
        "decoder_layers": layers,
    }


def _adaptive(cutoffs: str) -> dict:
    return {
        "adaptive_input": "true",
        "adaptive_softmax_cutoff": cutoffs,
        "tie_adaptive_weights": "true",
        "tie_adaptive_proj": "true",
        "no_decoder_final_norm": "true",
    }


# the paper's for Billion Word, also used for WikiText-103
_LM_KERNELS = {"decoder_kernel_sizes": Repeated((15, 15, 31, 31, 31, 31, 63))}

LANGUAGE_MODEL_SHAPES = {
    "lm_tiny": {
        **_lm_shape(128, 256, 4, layers=4),
        **_dropouts(0.3, 0.1, inputs=0.0),
        "no_decoder_final_norm": "true",  # docs/results-language-models.md#final-norm
    },
    "lm_wiki103": {  # shape, dropouts and adaptive input of Baevski and Auli 2019
        **_lm_shape(1024, 4096, 8, layers=16),
        **_dropouts(0.3, 0.1),
        **_LM_KERNELS,
        **_adaptive("20000,60000"),
        "activation_dropout": 0.1,
        "adaptive_softmax_dropout": 0.2,
    },
    "lm_gbw": {
        **_lm_shape(1024, 4096, 16, layers=17),
        **_dropouts(0.1, 0.1),
        **_LM_KERNELS,
        **_adaptive("60000,160000"),
    },
}


def _mlm_shape(width: int, ffn: int, heads: int, layers: int) -> dict:
    return {
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": ffn,
        "encoder_attention_heads": heads,
        "encoder_layers": layers,
        **_dropouts(0.1, 0.1, inputs=0.0),
    }


MASKED_LM_SHAPES = {
    "bert_tiny": _mlm_shape(128, 512, 4, layers=4),
    "bert_small": {**_mlm_shape(256, 1024, 4, layers=12), "encoder_input_dim": 128},
    "bert_base": _mlm_shape(768, 3072, 12, layers=12),
    "albert_base": {
        **_mlm_shape(768, 3072, 12, layers=12),
        "encoder_input_dim": 128,
        "share_encoder_layers": "true",
        "share_tables_across_layers": "true",
        "encoder_kernel_sizes": Repeated((31,)),  # layers that share their weights share one size
    },
}

ARCHITECTURE_NAMES = {
    "lightweight": "lightweight_conv_{}",
    "dynamic": "dynamic_conv_{}",
    "attention": "attention_{}",
    "composite": "composite_attention_{}",
    "tisa": "tisa_{}",
    "short_conv": "short_conv_{}",
}
# families not named after their mixer: the mixer and further settings
_MIXERS = {"short_conv": ("attention", {"short_convolution": "low_rank"})}
FAMILY_OPTIONS = frozenset(option for _, options in _MIXERS.values() for option in options)


def mixer_family(mixer: str, options: Mapping[str, Any]) -> str:
    """The family of architectures whose layers have this mixer and these options."""
    for family, (name, settings) in _MIXERS.items():
        if name == mixer and settings.items() <= options.items():
            return family
    return mixer


def _mixers(family: str, *stacks: str) -> dict:
    mixer, options = _MIXERS.get(family, (family, {}))
    return {**{f"{stack}_mixers": mixer for stack in stacks}, **options}


def _preset(family: str, shape: dict) -> dict:
    layers = _CONVOLUTION_LAYERS if family in CONVOLUTIONS else _ATTENTION_LAYERS
    return {**_mixers(family, "encoder", "decoder"), **layers, **shape}


ENCODER_DECODER_PRESETS = {
    pattern.format(name): _preset(family, shape)
    for family, pattern in ARCHITECTURE_NAMES.items()
    for name, shape in ENCODER_DECODER_SHAPES.items()
}
LANGUAGE_MODEL_PRESETS = {
    pattern.format(name): {**_mixers(family, "decoder"), **shape}
    for family, pattern in ARCHITECTURE_NAMES.items()
    for name, shape in LANGUAGE_MODEL_SHAPES.items()
}
# the 16 blocks of Baevski and Auli's models
for family, pattern in ARCHITECTURE_NAMES.items():
    if family not in CONVOLUTIONS:
        LANGUAGE_MODEL_PRESETS[pattern.format("lm_gbw")] |= {"decoder_layers": 16}
MASKED_LM_PRESETS = {
    pattern.format(name): {**_mixers(family, "encoder"), **shape}
    for family, pattern in ARCHITECTURE_NAMES.items()
    for name, shape in MASKED_LM_SHAPES.items()
}
