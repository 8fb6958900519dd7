"""Token mixers: modules with the call signature of fairseq's self-attention."""

from dataclasses import replace

from torch import nn

from .attention import SelfAttention
from .composite import CompositeAttention
from .config import MixerConfig, check, fixed_options
from .convolution import ConvolutionMixer, DynamicConvolution, LightweightConvolution
from .cross_attention import CrossAttention

MIXERS = {
    "lightweight": LightweightConvolution,
    "dynamic": DynamicConvolution,
    "attention": SelfAttention,
    "composite": CompositeAttention,
    "tisa": CompositeAttention,
}


def build_mixer(config: MixerConfig) -> nn.Module:
    """Build the mixer that ``config.mixer`` names, with the options that it fixes.

    Raises:
        ValueError: there is no mixer of that name, a field has a value that is not allowed, or
            one that the mixer fixes has another value.
    """
    if config.mixer not in MIXERS:
        raise ValueError(f"mixer: unknown {config.mixer!r}, choose from {', '.join(MIXERS)}")
    fixed = fixed_options(config.mixer)
    for field, value in fixed.items():
        given = getattr(config, field)
        same = isinstance(given, tuple | list) and set(given) == set(value)
        if given != getattr(MixerConfig, field) and not same:
            raise ValueError(f"{field}: {config.mixer} has {value}, not {given}")
    config = replace(config, **fixed)
    check(config)
    return MIXERS[config.mixer](config)


__all__ = [
    "MIXERS",
    "CompositeAttention",
    "ConvolutionMixer",
    "CrossAttention",
    "DynamicConvolution",
    "LightweightConvolution",
    "MixerConfig",
    "SelfAttention",
    "build_mixer",
]
