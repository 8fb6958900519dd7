"""The scores of several seeds: a table, and JSON."""

import statistics
from collections.abc import Sequence
from typing import Any

from .metrics import TITLES

STATISTICS = {
    "median": statistics.median,
    "min": min,
    "max": max,
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else None,
}
"""By name; ``std`` is that of a sample, and None of one seed."""


def summary(seeds: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """By metric: the statistics over the seeds, whose ``scores`` are by metric."""
    return {
        metric: {
            name: f([seed["scores"][metric] for seed in seeds]) for name, f in STATISTICS.items()
        }
        for metric in seeds[0]["scores"]
    }


def table(seeds: Sequence[dict[str, Any]]) -> str:
    """Lines with the scores of every seed and, below, their statistics."""
    metrics = list(seeds[0]["scores"])
    rows = [["seed", "epoch", *map(_title, metrics)]]
    for seed in seeds:
        numbers = [f"{seed['scores'][metric]:.2f}" for metric in metrics]
        rows.append([str(seed["seed"]), str(seed["epoch"]), *numbers])
    totals = summary(seeds)
    for name in STATISTICS:
        values = [totals[metric][name] for metric in metrics]
        rows.append([name, "", *("-" if value is None else f"{value:.2f}" for value in values)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join((row[0].ljust(len(first)), *others)))
    return "\n".join(lines)


def _title(metric: str) -> str:
    name, _, dev_set = metric.partition("_")
    return f"{TITLES[name]} {dev_set}".strip()
