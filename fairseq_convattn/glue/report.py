"""The scores of several seeds: a table, and JSON."""

import statistics
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

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
    totals = summary(seeds)
    titles = [
        f"{TITLES[name]} {dev_set}".strip()
        for name, _, dev_set in (metric.partition("_") for metric in totals)
    ]
    rows = [[seed["seed"], seed["epoch"], *seed["scores"].values()] for seed in seeds]
    rows += [[name, "", *(totals[metric][name] for metric in totals)] for name in STATISTICS]
    cells = [
        ["-" if x is None else f"{x:.2f}" if isinstance(x, float) else x for x in row]
        for row in rows
    ]
    heads = ["seed", "epoch", *titles]
    sides = ["left", *["right"] * (len(heads) - 1)]
    return tabulate(cells, heads, tablefmt="plain", disable_numparse=True, colalign=sides)
