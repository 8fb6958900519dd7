"""Whether two systems differ: sacreBLEU's paired bootstrap of what their runs wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sacrebleu import BLEU

from ..scoring.bootstrap import RESAMPLES, p_value, paired_bootstrap
from ..scoring.conventions import split_compounds
from ..scoring.generated import ScoringError, read_texts
from .runs import Run

EXPLANATION = (
    f"BLEU of tokens. p-values: sacreBLEU's paired bootstrap, {RESAMPLES:,} resamples with the "
    "seed in the signature. Of several runs, the lowest training seed that both systems have."
)
_COMPOUND_SPLIT, _LOWERCASE = "--compound-split", "--lowercase"


class Comparison(NamedTuple):
    """A system beside the baseline on one test set.

    Attributes:
        seed: of the training of both.
        score: BLEU of tokens, as the recipe has it.
        baseline: the same of the baseline.
        p_value: how often resampled texts differ from their mean difference by as much as
            these systems do.
    """

    seed: int
    score: float
    baseline: float
    p_value: float
    signature: str


class _Tokens(NamedTuple):
    """What is compared, and how."""

    hypotheses: Sequence[str]
    references: Sequence[str]
    split: bool
    lowercase: bool


def compare(baseline: Sequence[Run], system: Sequence[Run], subset: str) -> Comparison | None:
    """The runs of the lowest seed that both have, on the test set that fairseq calls ``subset``;
    None where there are none that have written and scored it against the same reference.

    Raises:
        OSError: a reference cannot be read.
    """
    before, after = (
        {run.seed: tokens for run in runs if (tokens := _tokens(run, subset))}
        for runs in (baseline, system)
    )
    seed = min(before.keys() & after.keys(), default=None)
    if seed is None or before[seed][1:] != after[seed][1:]:
        return None
    return _paired_bootstrap(seed, before[seed].hypotheses, after[seed])


def _tokens(run: Run, subset: str) -> _Tokens | None:
    """None of a run without a seed, too: it trained nothing."""
    scoring = run.tokenised.get(subset)
    if run.seed is None or scoring is None or subset not in run.generated:
        return None
    hypotheses = run.generated[subset].hypotheses
    try:
        references = read_texts(Path(scoring["--reference"])).hypotheses
    except (FileNotFoundError, ScoringError):  # as good as not there
        return None
    if len(hypotheses) != len(references):
        return None
    return _Tokens(hypotheses, references, _COMPOUND_SPLIT in scoring, _LOWERCASE in scoring)


def _paired_bootstrap(seed: int, baseline: Sequence[str], system: _Tokens) -> Comparison:
    texts = [baseline, system.hypotheses, system.references]
    if system.split:
        texts = [list(map(split_compounds, lines)) for lines in texts]
    metric = BLEU(tokenize="none", lowercase=system.lowercase, force=True)
    name, signature, (before, after) = paired_bootstrap(metric, texts[:2], texts[2:])
    signature = f"{name}|{signature}" + ("|compounds:split" if system.split else "")
    return Comparison(seed, after.score, before.score, p_value(after, before), signature)
