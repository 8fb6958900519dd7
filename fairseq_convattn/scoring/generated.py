"""Texts to score: plain files, or the output of fairseq-generate and fairseq-interactive."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"([STHD])-(\d{1,18})\t(.*)")
_HYPOTHESIS = re.compile(r"[HD]-\d+\t-?(\d|inf|nan)")


class ScoringError(ValueError):
    """Texts that cannot be scored; the message says why."""


@dataclass(frozen=True)
class Texts:
    """What one file holds, by sentence number.

    Attributes:
        path: the file.
        generated: whether it is the output of fairseq-generate or fairseq-interactive.
        hypotheses: plain lines, or those marked H-: as generated, subwords joined if told.
        detokenised: plain lines, or those marked D-: what ``--tokenizer`` and ``--bpe`` made
            of the hypotheses.
        targets: those marked T-, with ``<<unk>>`` for words that the dictionary lacks; None
            where there are none.
        sources: those marked S-; None where one has none.
    """

    path: Path
    generated: bool
    hypotheses: Sequence[str]
    detokenised: Sequence[str]
    targets: Sequence[str] | None
    sources: Sequence[str] | None = None


def read_texts(path: str | Path) -> Texts:
    """The texts of a file, the first hypothesis of every sentence.

    Raises:
        OSError: the file cannot be read.
        ScoringError: it is empty or not UTF-8, or a sentence is missing or there twice.
    """
    path = Path(path)
    lines = read_lines(path)
    if not any(map(_HYPOTHESIS.match, lines)):
        return Texts(path, False, lines, lines, None)
    marked: dict[str, dict[int, str]] = {mark: {} for mark in "STHD"}
    for match in filter(None, map(_LINE.fullmatch, lines)):
        mark, number, text = match[1], int(match[2]), match[3]
        known, scored = marked[mark], mark in "HD"
        further = scored and known and number == next(reversed(known))  # of --nbest
        if number in known and not further:
            raise ScoringError(f"{path} has {mark}-{number} twice: score one output at a time")
        known.setdefault(number, text.partition("\t")[2] if scored else text)
    count = len(set().union(*marked.values()))
    return Texts(
        path,
        True,
        _in_order(path, marked["H"] or marked["D"], count),
        _in_order(path, marked["D"] or marked["H"], count),
        _in_order(path, marked["T"], count) if marked["T"] else None,
        _in_order(path, marked["S"], count) if len(marked["S"]) == count else None,
    )


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, which a line feed ends and nothing else.

    Raises:
        OSError: the file cannot be read.
        ScoringError: it is empty or not UTF-8.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScoringError(f"{path} is not UTF-8 text: {error}") from None
    if not text:
        raise ScoringError(f"{path} is empty")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _in_order(path: Path, texts: dict[int, str], count: int) -> list[str]:
    for number in range(count):
        if number not in texts:
            raise ScoringError(
                f"{path} lacks sentence {number}: fairseq-generate was interrupted, ran as one of "
                "several processes or dropped sentences; it keeps every one with "
                "--required-batch-size-multiple 1 and without "
                "--skip-invalid-size-inputs-valid-test"
            )
    return [texts[number] for number in range(count)]
