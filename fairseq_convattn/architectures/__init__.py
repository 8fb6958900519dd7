"""Models built on fairseq's transformer, with a choice of token mixer in every layer."""

from .presets import PRESETS
from .translation import ConvAttnModel

__all__ = ["PRESETS", "ConvAttnModel"]
