"""Checks for common mistakes between a model's output and its score."""

import re
import unicodedata
from collections.abc import Sequence
from statistics import median

import sacrebleu

UNKNOWN = "<unk>"
UNKNOWN_IN_REFERENCE = "<<unk>>"


def mask_unknowns(reference: str) -> str:
    """A reference whose unknown words no hypothesis matches.

    fairseq writes a target's word that the dictionary lacks as ``<<unk>>``, yet tokenisers
    drop or cut off the brackets, so that it would match a hypothesis's ``<unk>``. It becomes
    the word that fairseq's own ``--eval-bleu`` puts there.
    """
    return reference.replace(UNKNOWN_IN_REFERENCE, "UNKNOWNTOKENINREF")


def alike(targets: Sequence[str], references: Sequence[Sequence[str]]) -> bool:
    """Whether targets are one of the references, perhaps tokenised, cased or cut in another way.

    That is measured by the precision of characters and words in about 100 of them: the median.
    Between other sentences of one language it is 10 to 35 %. Targets without letters, as the
    numbers of ``--bpe gpt2``, are taken to be alike.
    """
    precision = sacrebleu.CHRF(lowercase=True, word_order=2, beta=0)
    some = slice(None, None, max(1, len(targets) // 100))
    shown, *others = (list(map(_plain, lines[some])) for lines in (targets, *references))
    if not re.search(r"[^\d\s]", "".join(shown)):
        return True
    return any(
        median(
            precision.sentence_score(*pair).score for pair in zip(shown, zip(lines), strict=True)
        )
        > 40
        for lines in others
    )


def hypothesis_warnings(hypotheses: Sequence[str]) -> list[str]:
    """Warnings about hypotheses that make their score doubtful, a line each."""
    join = "fairseq-generate joins them with --remove-bpe or --remove-bpe sentencepiece"
    lines = _warnings(hypotheses, "hypotheses", join)
    unknown = _count(UNKNOWN, hypotheses)
    if unknown:
        lines.append(f"the hypotheses have {unknown} {UNKNOWN}; they count as words")
    return lines


def reference_warnings(references: Sequence[str]) -> list[str]:
    """Warnings about references, as written by fairseq, that make scores doubtful, a line each."""
    lines = _warnings(references, "references", "score against the original text")
    unknown = _count(UNKNOWN_IN_REFERENCE, references)
    if unknown:
        lines.append(
            f"the references have {unknown} {UNKNOWN_IN_REFERENCE}, words that the dictionary "
            "lacks; they match nothing, so score against the original text instead"
        )
    return lines


def _warnings(texts: Sequence[str], kind: str, way_out: str) -> list[str]:
    lines = []
    subwords = sum(map(_has_subwords, texts))
    if subwords:
        lines.append(
            f"subwords (@@ or \u2581) seem left in {subwords} of the {kind}, which changes the "
            f"score; {way_out}"
        )
    empty = sum(not text.strip() for text in texts)
    if empty:
        lines.append(f"{empty} of {len(texts)} {kind} are empty")
    return lines


def _plain(text: str) -> str:
    """The text without unknown words and marks of subwords, its characters normalised as by
    SentencePiece."""
    text = unicodedata.normalize("NFKC", text.replace(UNKNOWN_IN_REFERENCE, "").replace("@@ ", ""))
    return text.replace(" ", "").replace("\u2581", " ") if "\u2581" in text else text


def _has_subwords(text: str) -> bool:
    return "@@ " in text or text.endswith("@@") or "\u2581" in text


def _count(word: str, texts: Sequence[str]) -> int:
    return sum(text.count(word) for text in texts)
