"""GLUE's metrics, in percent, over a whole data set."""

import math
import warnings
from collections.abc import Sequence

from scipy.stats import ConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from .tasks import GlueTask


def _f1(labels: Sequence, predictions: Sequence) -> float:
    return f1_score(labels, predictions, pos_label=1, zero_division=0)


def _correlation(function):
    def correlation(labels: Sequence, predictions: Sequence) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantInputWarning)
            value = function(labels, predictions)[0]
        return 0.0 if math.isnan(value) else value

    return correlation


METRICS = {
    "matthews": matthews_corrcoef,
    "accuracy": accuracy_score,
    "f1": _f1,
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
}
"""By name: functions of labels and predictions. A correlation with constant predictions, which
is not defined, is 0, as Matthews' is."""

TITLES = {
    "matthews": "Matthews",
    "accuracy": "accuracy",
    "f1": "F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


def score(task: GlueTask, labels: Sequence, predictions: Sequence) -> dict[str, float]:
    """The metrics of a task, in percent.

    Args:
        labels: numbers of classes in ``task.classes``, or scores.
        predictions: the same, of a model; F1 is that of class 1.
    """
    return {name: 100.0 * float(METRICS[name](labels, predictions)) for name in task.metrics}
