"""The paired bootstrap of sacreBLEU."""

from sacrebleu.significance import Result


def p_value(system: Result, baseline: Result) -> float:
    """The p-value of a difference; 1 for equal scores, of which sacreBLEU says that they differ."""
    return 1.0 if system.score == baseline.score else system.p_value
