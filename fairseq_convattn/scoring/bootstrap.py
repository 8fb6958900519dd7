"""The paired bootstrap of sacreBLEU."""

from collections.abc import Sequence

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from .rouge import RESAMPLES


def paired_bootstrap(
    metric: Metric, systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> tuple[str, str, list[Result]]:
    """Score systems, the first of which is the baseline of the others, with intervals and
    p-values.

    Returns:
        The metric's name, its signature, and a result for each system.
    """
    named = [(str(number), list(texts)) for number, texts in enumerate(systems)]
    references = list(map(list, references))
    test = PairedTest(named, {"": metric}, references, "bs", n_samples=RESAMPLES)
    signatures, results = test()
    ((name, signature),) = signatures.items()
    return name, str(signature), results[name]


def p_value(system: Result, baseline: Result) -> float:
    """The p-value of a difference; 1 for equal scores, of which sacreBLEU says that they differ."""
    return 1.0 if system.score == baseline.score else system.p_value
