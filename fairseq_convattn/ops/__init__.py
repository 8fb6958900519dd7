"""Operations: tensors in, tensors out. Nothing here knows fairseq or ``nn.Module``."""

from .attention import composite_attention, relative_bias
from .convolution import Past, dynamic_conv, lightweight_conv
from .implementation import use_implementation
from .taps import TAP_NORMALIZATIONS, normalize_taps, taps_inside

__all__ = [
    "Past",
    "TAP_NORMALIZATIONS",
    "composite_attention",
    "dynamic_conv",
    "lightweight_conv",
    "normalize_taps",
    "relative_bias",
    "taps_inside",
    "use_implementation",
]
