"""Text as ALBERT takes it (Lan et al. 2020)."""

import re
import unicodedata

from sentencepiece import SentencePieceProcessor

_SPACE = "\u2581"  # SentencePiece's
_SPECIAL = {"[CLS]", "[SEP]", "[MASK]"}


def is_alberts(processor: SentencePieceProcessor) -> bool:
    """Whether pieces are those of an uncased ALBERT: with ``[CLS]`` and no capitals."""
    pieces = {processor.id_to_piece(i) for i in range(processor.get_piece_size())}
    return "[CLS]" in pieces and all(piece == piece.lower() for piece in pieces - _SPECIAL)


def pieces_of(processor: SentencePieceProcessor, texts: list[str]) -> list[list[str]]:
    """The pieces of texts, prepared as in ALBERT's own code."""
    split = processor.encode([_uncased(text) for text in texts], out_type=str)
    return [
        [part for piece in pieces for part in _without_comma(processor, piece)] for pieces in split
    ]


def _uncased(text: str) -> str:
    """Lower case, without accents, with single spaces, and with ASCII's quotes for TeX's."""
    text = " ".join(text.split())
    text = unicodedata.normalize("NFKD", text.replace("``", '"').replace("''", '"'))
    return "".join(char for char in text if not unicodedata.combining(char)).lower()


def _without_comma(processor: SentencePieceProcessor, piece: str) -> list[str]:
    """Split off the comma of a piece that ends in a digit and a comma, as ALBERT does."""
    if not re.fullmatch(r".*\d,", piece):
        return [piece]
    number = processor.encode(piece[:-1].replace(_SPACE, ""), out_type=str)
    if not piece.startswith(_SPACE) and number[0].startswith(_SPACE):
        number = [*filter(None, [number[0][1:]]), *number[1:]]
    return [*number, ","]
