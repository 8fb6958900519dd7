"""Models built on fairseq's transformer, with a choice of token mixer in every layer."""

import fairseq_convattn

if fairseq_convattn.__file__ is None:  # Python took a folder of that name for the package
    raise ImportError(
        f"{list(fairseq_convattn.__path__)[0]} is a clone of fairseq_convattn, not the package. "
        "You started Python in the folder above it, or run a script there: change into the clone, "
        "move the script, or rename the clone"
    )

from .language_model import ConvAttnLanguageModel
from .masked_language_model import ConvAttnMaskedLanguageModel
from .translation import ConvAttnModel

__all__ = ["ConvAttnLanguageModel", "ConvAttnMaskedLanguageModel", "ConvAttnModel"]
