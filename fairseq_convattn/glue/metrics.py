"""GLUE's metrics, in percent, over a whole data set."""

import math
import warnings
from collections.abc import Callable, Sequence

from ..outputs import missing_modules
from .tasks import GlueError, GlueTask

TITLES = {
    "matthews": "Matthews",
    "accuracy": "accuracy",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


def require_libraries() -> None:
    """See that the libraries that compute the metrics are there.

    Raises:
        GlueError: one is not.
    """
    if missing := missing_modules("sklearn", "scipy"):
        raise GlueError(f"GLUE's metrics need {missing.replace('sklearn', 'scikit-learn')}")


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
    """A correlation; with constant predictions, where it is not defined, 0 as Matthews' is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An input array is constant")
        value = function(labels, predictions)[0]
    return 0.0 if math.isnan(value) else value
