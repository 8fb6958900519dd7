"""Models built on fairseq's transformer, with a choice of token mixer in every layer."""

from .language_model import ConvAttnLanguageModel
from .masked_language_model import ConvAttnMaskedLanguageModel
from .translation import ConvAttnModel

__all__ = ["ConvAttnLanguageModel", "ConvAttnMaskedLanguageModel", "ConvAttnModel"]
