"""Operations: tensors in, tensors out. Nothing here knows fairseq or ``nn.Module``."""

from .attention import composite_attention, relative_bias
from .convolution import Past, dynamic_conv, lightweight_conv
from .implementation import use_implementation
from .short_convolution import low_rank_short_conv, short_conv
from .taps import TAP_NORMALIZATIONS, normalize_taps, taps_inside

__all__ = [
    "Past",
    "TAP_NORMALIZATIONS",
    "composite_attention",
    "dynamic_conv",
    "lightweight_conv",
    "low_rank_short_conv",
    "normalize_taps",
    "relative_bias",
    "short_conv",
    "taps_inside",
    "use_implementation",
]
