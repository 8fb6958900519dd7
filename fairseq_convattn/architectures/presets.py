"""The named architectures: shapes and dropouts of Wu et al. 2019, as data."""

from ..mixers import MIXERS


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

TRANSLATION_SHAPES = {
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
    "wmt_zh_en_big": {**_BIG, **_dropouts(0.2, 0.2)},
}

ARCHITECTURE_NAMES = {
    "lightweight": "lightweight_conv_{}",
    "dynamic": "dynamic_conv_{}",
    "attention": "attention_{}",
}


def _preset(mixer: str, shape: dict) -> dict:
    layers = _ATTENTION_LAYERS if mixer == "attention" else _CONVOLUTION_LAYERS
    return {"encoder_mixers": mixer, "decoder_mixers": mixer, **layers, **shape}


PRESETS = {
    ARCHITECTURE_NAMES[mixer].format(name): _preset(mixer, shape)
    for mixer in MIXERS
    for name, shape in TRANSLATION_SHAPES.items()
}
