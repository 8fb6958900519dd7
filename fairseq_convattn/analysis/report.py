"""Analyses several checkpoints and reports them in Markdown: findings and tables of R^2."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from torch import Tensor

from ..checkpoints.checks import CheckpointError
from ..markdown import MISSING, Table, table
from ..spelling import printable
from .checkpoint import analysis, layer_names, stack_title
from .curves import VECTOR_TERMS
from .toeplitz import white_noise_r2


def analyse(paths: Sequence[str | Path], block: int) -> tuple[list[dict], dict[str, Tensor]]:
    """Analyse checkpoints, in the order of their updates; prints each path on standard error.

    Args:
        paths: one checkpoint or, for R^2 against updates, several.
        block: positions in a block.

    Returns:
        The result of :func:`analysis` for each, and the position tables of the last one.

    Raises:
        CheckpointError: a checkpoint cannot be read or has nothing to analyse, the checkpoints are
            of different models, or one of several does not store its number of updates.
    """
    found: list[tuple[dict, dict[str, Tensor]]] = []
    for path in paths:
        print(f"reading {path}", file=sys.stderr, flush=True)
        found.append(analysis(path, block))
        result, first = found[-1][0], found[0][0]
        if len(paths) > 1 and result["updates"] is None:
            raise CheckpointError(f"{path} does not say after how many updates it was written")
        if _shape(result) != _shape(first):
            raise CheckpointError(f"{path} and {paths[0]} are not of the same model")
    found.sort(key=lambda one: one[0]["updates"] or 0)
    return [result for result, _ in found], found[-1][1]


def _shape(result: dict) -> dict[str, tuple]:
    """The properties that all checkpoints of a model share."""
    shape = {}
    for name, stack in result["stacks"].items():
        positions = stack["positions"] or {}
        sizes = positions.get("number"), positions.get("width"), len(_heads(stack))
        shape[name] = (*sizes, *stack["terms"], *stack["kernels"])
    return shape


def r2_of(by_positions: dict, block: int | None) -> float | None:
    """R^2 of a block by its number, or of all positions, out of :func:`r2_by_positions`."""
    return by_positions["overall"] if block is None else by_positions["blocks"][block]["r2"]


def markdown(results: Sequence[dict]) -> str:
    """What was found, and a table of R^2 by checkpoint and positions."""
    parts = []
    for name, stack in results[-1]["stacks"].items():
        lines = [f"{stack_title(name)}: {line}" for line in (*findings(stack), *stack["notes"])]
        parts += map(printable, lines)
    rows = [
        [str(result["updates"] or ""), stack_title(name), *cells]
        for result in results
        for name, stack in result["stacks"].items()
        if stack["positions"] and (stack["positions"]["kind"] == "learned" or stack["attention"])
        for cells in _by_positions(stack)
    ]
    columns = ("updates", "stack", "positions", "R^2 of E E^T", "of white noise")
    columns += ("R^2 of the heads: mean", "lowest", "highest")
    return "\n\n".join([*parts, table(Table(columns, rows, ()))] if rows else parts)


def findings(stack: dict) -> Iterator[str]:
    """Sentences about a stack, from its part of :func:`checkpoint.analysis`."""
    if stack["positions"]:
        yield _of_positions(**stack["positions"])
    r2 = {
        _place(layer["layers"], head): values["overall"]
        for layer in stack["attention"]
        for head, values in enumerate(layer["heads"])
        if values["overall"] is not None
    }
    if r2:
        lowest, highest = min(r2, key=r2.get), max(r2, key=r2.get)
        yield (
            f"The {len(r2)} heads have R^2 = {fmean(r2.values()):z.2f} on average, from "
            f"{r2[lowest]:z.2f} ({lowest}) to {r2[highest]:z.2f} ({highest})."
        )
    for term, by_layer in stack["terms"].items():
        yield _of_term(term, by_layer)
    for convolved, by_layer in stack["kernels"].items():
        reach = [f"{_reach(x):.1f} in {layer_names(x['layers'])}" for x in by_layer]
        yield (
            f"Lightweight convolutions of the {convolved} look this far on average: "
            f"{', '.join(reach)}."
        )


def _of_positions(kind: str, number: int, width: int, r2: dict) -> str:
    shape = f"{number} {kind} positions, {width} wide"
    if r2["overall"] is None:
        return f"The {shape}, are all the same."
    return (
        f"The {shape}, have R^2 = {r2['overall']:z.2f} with their best Toeplitz fit; white noise "
        f"of this shape has {white_noise_r2(number, width):.2f}."
    )


def _of_term(term: str, by_layer: list[dict]) -> str:
    peaks = []  # per head: the highest value of its curve and the distance of that
    for curves in by_layer:
        for head, values in enumerate(curves["heads"]):
            value = max(values)
            distance = curves["distances"][values.index(value)]
            peaks.append((value, distance, _place(curves["layers"], head)))
    before, after = sum(x < 0 for _, x, _ in peaks), sum(x > 0 for _, x, _ in peaks)
    value, distance, place = max(peaks, key=lambda peak: peak[0])
    layers = layer_names(sorted(layer for curves in by_layer for layer in curves["layers"]))
    what = f"norm of the {term} term" if term in VECTOR_TERMS else f"{term} term"
    return (
        f"The {what} ({layers}) is highest at the position itself in "
        f"{len(peaks) - before - after} of {len(peaks)} heads, before it in {before} and after it "
        f"in {after}. The highest value is {value:#.3g}, at distance {distance:+d} ({place})."
    )


def _reach(kernels: dict) -> float:
    """The mean distance of a layer's taps, each weighted by its size."""
    weights = [
        (abs(weight), abs(distance))
        for taps in kernels["heads"]
        for weight, distance in zip(taps, kernels["distances"], strict=True)
    ]
    return sum(x * y for x, y in weights) / (sum(x for x, _ in weights) or 1)


def _place(layers: Sequence[int], head: int) -> str:
    return f"{layer_names(layers)}, head {head}"


def _by_positions(stack: dict) -> Iterator[list[str]]:
    """R^2 over all positions and block by block, with mean and range over the heads."""
    positions, heads = stack["positions"], _heads(stack)
    blocks = positions["r2"]["blocks"]
    for part in [None, *range(len(blocks) if len(blocks) > 1 else 0)]:
        first, last = (0, positions["number"] - 1) if part is None else blocks[part]["positions"]
        r2 = [found for head in heads if (found := r2_of(head, part)) is not None]
        figures = [r2_of(positions["r2"], part)]
        figures.append(white_noise_r2(last - first + 1, positions["width"]))
        figures += [fmean(r2), min(r2), max(r2)] if r2 else [None] * 3
        yield [f"{first}-{last}", *(MISSING if x is None else f"{x:z.3f}" for x in figures)]


def _heads(stack: dict) -> list[dict]:
    return [head for layer in stack["attention"] for head in layer["heads"]]
