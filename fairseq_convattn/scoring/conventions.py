"""Conventions of papers for texts before scoring."""

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from .generated import ScoringError

_WITHOUT_PREFIXES = ("ja", "ko", "zh")  # sacremoses knows them too
_COMPOUND = re.compile(rb"(\S)-(\S)")


def split_compounds(text: str) -> str:
    """``text`` with its compounds split as for the published BLEU on WMT en-de (Vaswani et al.
    2017 and later; fairseq's ``scripts/compound_split_bleu.sh``).

    The Perl of these scripts works on bytes, one pair of them after another: of ``a-b-c`` it
    keeps the second hyphen, of ``a-\u00fc-c``, where two bytes are between them, it splits both.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", text.encode()).decode()


def detokenise(texts: Iterable[str], language: str) -> list[str]:
    """Detokenise Moses' tokens with sacremoses, the port of ``detokenizer.perl``.

    Raises:
        ImportError: sacremoses is not installed.
        ScoringError: it does not know the language.
    """
    detokenizer_version()
    from sacremoses import MosesDetokenizer
    from sacremoses.corpus import NonbreakingPrefixes

    known = sorted({*NonbreakingPrefixes().available_langs.values(), *_WITHOUT_PREFIXES})
    if language not in known:
        raise ScoringError(f"--detokenize: unknown {language!r}, choose from {', '.join(known)}")

    join = MosesDetokenizer(language).detokenize
    return [join(text.split()) for text in texts]


def detokenizer_version() -> str:
    """The version of sacremoses.

    Raises:
        ImportError: sacremoses is not installed.
    """
    try:
        return version("sacremoses")
    except PackageNotFoundError:
        raise ImportError("--detokenize needs sacremoses: pip install sacremoses") from None
