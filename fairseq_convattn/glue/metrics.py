"""GLUE's metrics, in percent, over a whole data set, and their statistics over seeds."""

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tabulate import tabulate

from .tasks import GlueTask

STATISTICS = {
    "median": statistics.median,
    "min": min,
    "max": max,
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else None,
}
"""Statistics by name; ``std`` is the sample's, and None for one seed."""


def score(task: GlueTask, labels: Sequence, predictions: Sequence) -> dict[str, float]:
    """The metrics of a task, in percent.

    Args:
        labels: numbers of classes in ``task.classes``, or scores.
        predictions: the same, of a model; F1 is that of class 1.
    """
    from scipy import stats
    from sklearn import metrics

    functions = {
        "matthews": metrics.matthews_corrcoef,
        "accuracy": metrics.accuracy_score,
        "f1": lambda *both: metrics.f1_score(*both, pos_label=1, zero_division=0),
        "pearson": lambda *both: _correlation(stats.pearsonr, *both),
        "spearman": lambda *both: _correlation(stats.spearmanr, *both),
    }
    return {name: 100.0 * float(functions[name](labels, predictions)) for name in task.metrics}


def _correlation(function: Callable, labels: Sequence, predictions: Sequence) -> float:
    """A correlation; 0, like Matthews', for constant predictions, where it is undefined."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An input array is constant")
        value = function(labels, predictions)[0]
    return 0.0 if math.isnan(value) else value


def summary(seeds: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Statistics over the seeds, by metric."""
    return {
        metric: {
            name: f([seed["scores"][metric] for seed in seeds]) for name, f in STATISTICS.items()
        }
        for metric in seeds[0]["scores"]
    }


def table(seeds: Sequence[dict[str, Any]]) -> str:
    """Lines with the scores of every seed and, below, their statistics."""
    totals = summary(seeds)
    rows = [[seed["seed"], seed["epoch"], *seed["scores"].values()] for seed in seeds]
    rows += [[name, "", *(total[name] for total in totals.values())] for name in STATISTICS]
    heads = ["seed", "epoch", *(metric.replace("_", " ") for metric in totals)]
    return tabulate(rows, heads, tablefmt="plain", floatfmt=".2f", missingval="-")
