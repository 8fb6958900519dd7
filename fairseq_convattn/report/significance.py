"""Whether two systems differ: sacreBLEU's paired bootstrap of what their runs wrote."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu import BLEU
from sacrebleu.significance import PairedTest

from ..scoring.conventions import split_compounds
from ..scoring.generated import ScoringError, read_texts
from .runs import Run

RESAMPLES = 1000
EXPLANATION = (
    f"BLEU of tokens, p-values of sacreBLEU's paired bootstrap with {RESAMPLES:,} resamples, whose "
    "seed the signature has. Of several runs those of the lowest training seed that both systems "
    "have."
)
_COMPOUND_SPLIT, _LOWERCASE = "--compound-split", "--lowercase"


class Comparison(NamedTuple):
    """A system beside the baseline on one test set.

    Attributes:
        seed: of the training of both.
        score: BLEU of tokens, as the recipe has it.
        baseline: the same of the baseline.
    """

    seed: int
    score: float
    baseline: float
    p_value: float
    signature: str


class _Tokens(NamedTuple):
    """What is compared, and with which of the options of scripts/score.py."""

    hypotheses: Sequence[str]
    references: Sequence[str]
    options: Sequence[str]


def compare(baseline: Sequence[Run], system: Sequence[Run], subset: str) -> Comparison | None:
    """The runs of the lowest seed that both have, on the test set that fairseq calls ``subset``;
    None where there are none that have written and scored it against the same reference.

    Raises:
        OSError: a reference cannot be read.
    """
    before, after = (_by_seed(runs, subset) for runs in (baseline, system))
    common = before.keys() & after.keys()
    if not common:
        return None
    seed = min(common)
    if before[seed][1:] != after[seed][1:]:
        return None
    return _paired_bootstrap(seed, before[seed].hypotheses, *after[seed])


def _by_seed(runs: Sequence[Run], subset: str) -> dict[int, _Tokens]:
    found = {run.seed: _tokens(run, subset) for run in runs if run.seed is not None}
    return {seed: tokens for seed, tokens in found.items() if tokens}


def _tokens(run: Run, subset: str) -> _Tokens | None:
    if subset not in run.generated or subset not in run.tokenised:
        return None
    reference, words = run.tokenised[subset]
    try:
        texts = [run.generated[subset].hypotheses, read_texts(reference).hypotheses]
    except (FileNotFoundError, ScoringError):  # as good as not there
        return None
    if len(texts[0]) != len(texts[1]):
        return None
    options = [option for option in (_COMPOUND_SPLIT, _LOWERCASE) if option in words]
    if _COMPOUND_SPLIT in options:
        texts = [list(map(split_compounds, lines)) for lines in texts]
    return _Tokens(*texts, options)


def _paired_bootstrap(
    seed: int,
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    options: Sequence[str],
) -> Comparison:
    metric = BLEU(tokenize="none", lowercase=_LOWERCASE in options, force=True)
    named = [("baseline", baseline), ("system", system)]
    test = PairedTest(named, {"BLEU": metric}, [references], "bs", n_samples=RESAMPLES)
    signatures, results = test()
    before, after = results["BLEU"]
    # of systems that score the same sacreBLEU says that they differ
    p_value = 1.0 if before.score == after.score else after.p_value
    signature = f"BLEU|{signatures['BLEU']}"
    signature += "|compounds:split" if _COMPOUND_SPLIT in options else ""
    return Comparison(seed, after.score, before.score, p_value, signature)
