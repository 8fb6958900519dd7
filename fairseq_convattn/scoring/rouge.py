"""ROUGE (Lin 2004) as rouge-score computes it, summary by summary and over a corpus.

Every text goes to rouge-score as it is, except for the sentence boundaries that
``RougeSettings.split`` marks. rouge-score ignores case and keeps the letters a to z and digits
only, so it suits little but English.
"""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.scoring import Score

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
NAMES = dict(zip(ROUGE_TYPES, ("ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum"), strict=True))
RESAMPLES = 1000
SEED = 12345

_TIE = 1e-12  # means that differ by less are equal but for rounding
_WORD = re.compile("[a-z0-9]")
# a closing quote or bracket belongs to the sentence that it ends
_MARKER = re.compile(r"(?<!\S)<[^<>\s]+>(?!\S)")
_SENTENCE_END = re.compile(r"([.!?][\"'”’)\]]*)\s+")


@dataclass(frozen=True)
class RougeSettings:
    """How summaries are compared.

    Attributes:
        stem: compare words by their Porter stems, like ROUGE-1.5.5 with ``-m``.
        split: where a new sentence begins, which ROUGE-Lsum alone looks at. ``newline``, as in
            rouge-score; ``punctuation``, also after ``.``, ``!`` or ``?`` and white space; or
            a marker such as ``<q>`` that stands for a newline and is not a word.

    Raises:
        ValueError: ``split`` is something else.
    """

    stem: bool = True
    split: str = "newline"

    def __post_init__(self) -> None:
        if self.split in ("newline", "punctuation"):
            return
        if self.split.strip() == r"\n":
            raise ValueError(r"\n is not a marker; write newline")
        if not self.split.strip() or self.split.isalnum():
            raise ValueError(
                "sentences are split at newline, punctuation or a marker such as <q>, "
                f"not at {self.split!r}"
            )


DEFAULT = RougeSettings()


def sentence_scores(
    hypothesis: str, references: Sequence[str], settings: RougeSettings = DEFAULT
) -> dict[str, "Score"]:
    """The scores of one summary, by ``ROUGE_TYPES``.

    Returns:
        rouge-score's ``precision``, ``recall`` and ``fmeasure``, fractions of 1; of several
        references the one with the best ``fmeasure``, for each type by itself.

    Raises:
        ImportError: rouge-score is not installed.
        ValueError: ``references`` is a string or empty.
    """
    if isinstance(references, str) or not references:
        raise ValueError("references is a sequence of texts, at least one")
    targets = [split_sentences(reference, settings) for reference in references]
    return _scorer(settings.stem).score_multi(targets, split_sentences(hypothesis, settings))


def split_sentences(text: str, settings: RougeSettings = DEFAULT) -> str:
    """``text`` with a newline where a sentence begins."""
    if settings.split == "newline":
        return text
    if settings.split == "punctuation":
        return _SENTENCE_END.sub(r"\1\n", text)
    return text.replace(settings.split, "\n")


class CorpusScore(NamedTuple):
    """Means over a corpus in percent, and the 95 % confidence interval of ``fmeasure``."""

    precision: float
    recall: float
    fmeasure: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.fmeasure:.2f} [{self.low:.2f}, {self.high:.2f}], "
            f"precision {self.precision:.2f}, recall {self.recall:.2f}"
        )


def corpus_scores(scores: Sequence[Mapping[str, "Score"]]) -> dict[str, CorpusScore]:
    """The means of sentence scores, by ``ROUGE_TYPES``.

    The interval runs from the 2.5th to the 97.5th percentile of the means of ``RESAMPLES``
    samples drawn with replacement, the same ones every time.

    Raises:
        ValueError: there are no scores.
    """
    means = 100 * _matrix(scores).mean(axis=0)  # [types, 3]
    low, high = np.percentile(100 * _resampled_means(_fmeasures(scores)), (2.5, 97.5), axis=0)
    return {
        name: CorpusScore(*map(float, (*means[i], low[i], high[i])))
        for i, name in enumerate(ROUGE_TYPES)
    }


def paired_p_values(
    scores: Sequence[Mapping[str, "Score"]], baseline: Sequence[Mapping[str, "Score"]]
) -> dict[str, float]:
    """Two-sided p-values of the difference in ``fmeasure`` between two systems, by type.

    The paired bootstrap: the share of resamples whose difference is at least as far from the
    observed one as that is from zero (Riezler and Maxwell 2005).

    Raises:
        ValueError: the systems have not scored the same number of summaries, or none.
    """
    if len(scores) != len(baseline):
        raise ValueError(f"{len(scores)} summaries cannot be paired with {len(baseline)}")
    differences = _fmeasures(scores) - _fmeasures(baseline)
    observed = differences.mean(axis=0)
    distances = np.abs(_resampled_means(differences) - observed)
    extreme = (distances > np.abs(observed) - _TIE).sum(axis=0)
    return {name: float(extreme[i] + 1) / (RESAMPLES + 1) for i, name in enumerate(ROUGE_TYPES)}


def signature(references: int, settings: RougeSettings = DEFAULT) -> str:
    """A signature in sacreBLEU's style, with which others can repeat a score.

    Raises:
        ImportError: rouge-score is not installed.
    """
    return (
        f"nrefs:{references}|stem:{'yes' if settings.stem else 'no'}|tok:rouge-score|"
        f"split:{settings.split}|n:{RESAMPLES}|seed:{SEED}|version:{_version()}"
    )


def rouge_warnings(references: Sequence[str], settings: RougeSettings = DEFAULT) -> list[str]:
    """Warnings about references that make ROUGE doubtful, a line each."""
    lines = []
    marker = _common_marker(references)
    if marker and marker not in settings.split:
        lines.append(
            f"most references have {marker}, which counts as a word; if it stands between "
            f"sentences, --rouge-split '{marker}' splits there"
        )
    punctuation = RougeSettings(split="punctuation")
    if settings.split not in ("newline", "punctuation"):
        if not any(settings.split in text for text in references):
            lines.append(f"no reference has {settings.split}, the marker to split sentences at")
    elif not marker and not _divides(references, settings) and _divides(references, punctuation):
        lines.append(
            f"ROUGE-Lsum is ROUGE-L here, for no reference is split at {settings.split}; papers "
            "split summaries into sentences, as --rouge-split punctuation does"
        )
    foreign = sum(bool(text.strip()) and not _WORD.search(text.lower()) for text in references)
    if foreign:
        lines.append(
            f"{foreign} of {len(references)} references score 0, for they have no word that "
            "rouge-score knows: it keeps the letters a to z and digits only"
        )
    return lines


def _common_marker(texts: Sequence[str]) -> str | None:
    """A tag such as <q> that more than half of the texts have."""
    counts = Counter(tag for text in texts for tag in set(_MARKER.findall(text)))
    del counts["<unk>"]
    for tag, count in counts.most_common(1):
        if count > len(texts) / 2:
            return tag
    return None


def _divides(texts: Sequence[str], settings: RougeSettings) -> bool:
    return any("\n" in split_sentences(text, settings) for text in texts)


def _matrix(scores: Sequence[Mapping[str, "Score"]]) -> np.ndarray:
    """[summaries, types, 3]"""
    if not scores:
        raise ValueError("there is no summary to score")
    return np.array([[score[name] for name in ROUGE_TYPES] for score in scores], dtype=float)


def _fmeasures(scores: Sequence[Mapping[str, "Score"]]) -> np.ndarray:
    """[summaries, types]"""
    return _matrix(scores)[:, :, CorpusScore._fields.index("fmeasure")]


def _resampled_means(values: np.ndarray) -> np.ndarray:
    """[summaries, types] -> [RESAMPLES, types], whatever the order of the summaries, which
    fairseq-generate sorts by length."""
    values = np.sort(values, axis=0)
    generator = np.random.default_rng(SEED)
    count = len(values)
    return np.stack(
        [values[generator.integers(count, size=count)].mean(axis=0) for _ in range(RESAMPLES)]
    )


def _version() -> str:
    try:
        return version("rouge-score")
    except PackageNotFoundError:
        raise ImportError("ROUGE needs rouge-score: pip install rouge-score==0.1.2") from None


@functools.lru_cache
def _scorer(stem: bool) -> "RougeScorer":
    _version()
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    # given its own tokeniser, rouge-score logs nothing about it
    return RougeScorer(list(ROUGE_TYPES), tokenizer=DefaultTokenizer(stem))
