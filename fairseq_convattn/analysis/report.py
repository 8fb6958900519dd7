"""The analysis of several checkpoints, and as Markdown."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from torch import Tensor

from ..checkpoints.files import CheckpointError
from ..report.markdown import Table, table
from .checkpoint import analysis, stack_title
from .findings import findings
from .toeplitz import white_noise_r2


def analyse(
    paths: Sequence[str | Path],
    block: int,
    progress: Callable[[str | Path], None] = lambda path: None,
) -> tuple[list[dict], dict[str, Tensor]]:
    """Analyse checkpoints, in the order of their updates.

    Args:
        paths: one checkpoint or, for R^2 against updates, several.
        block: positions in a block.
        progress: called with each path before it is read.

    Returns:
        What :func:`analysis` says of each, and the tables of positions of the last of them.

    Raises:
        CheckpointError: one cannot be read or has nothing to analyse, or several are not of
            one model or do not say after how many updates they were written.
    """
    found: list[tuple[dict, dict[str, Tensor]]] = []
    for path in paths:
        progress(path)
        found.append(analysis(path, block))
        result, first = found[-1][0], found[0][0]
        if len(paths) > 1 and result["updates"] is None:
            raise CheckpointError(f"{path} does not say after how many updates it was written")
        if _shape(result) != _shape(first):
            raise CheckpointError(f"{path} and {paths[0]} are not of the same model")
    found.sort(key=lambda one: one[0]["updates"] or 0)
    return [result for result, _ in found], found[-1][1]


def r2_of(by_positions: dict, block: int | None) -> float | None:
    """R^2 of a block, or of all positions where ``block`` is None.

    Args:
        by_positions: what :func:`toeplitz.r2_by_positions` says.
        block: its number, from 0.
    """
    return by_positions["overall"] if block is None else by_positions["blocks"][block]["r2"]


def _shape(result: dict) -> dict[str, tuple]:
    """What must be the same in all checkpoints of a model."""
    shape = {}
    for name, stack in result["stacks"].items():
        positions = stack["positions"] or {}
        sizes = positions.get("number"), positions.get("width"), len(_heads(stack))
        shape[name] = (*sizes, *stack["terms"], *stack["kernels"])
    return shape


def markdown(results: Sequence[dict]) -> str:
    """What was found, and tables of R^2: of one checkpoint by positions, of several by
    updates."""
    parts = []
    for name, stack in results[-1]["stacks"].items():
        title = stack_title(name)
        parts += [f"{title}: {line}" for line in (*findings(stack), *stack["notes"])]
        learned = stack["positions"] and stack["positions"]["kind"] == "learned"
        if len(results) == 1 and (learned or stack["attention"]):
            parts.append(_by_positions(stack))
    if len(results) > 1 and any(stack["positions"] for stack in results[-1]["stacks"].values()):
        parts.append(_by_updates(results))
    return "\n\n".join(parts)


def _by_positions(stack: dict) -> str:
    """R^2 over all positions and block by block; of the heads the mean and the range."""
    positions, heads = stack["positions"], _heads(stack)
    blocks = positions["r2"]["blocks"]
    columns = ["positions", "R^2 of E E^T", "of white noise"]
    if heads:
        columns += ["R^2 of the heads: mean", "lowest", "highest"]
    rows = []
    for part in [None, *range(len(blocks) if len(blocks) > 1 else 0)]:
        first, last = (0, positions["number"] - 1) if part is None else blocks[part]["positions"]
        figures = [
            r2_of(positions["r2"], part),
            white_noise_r2(last - first + 1, positions["width"]),
            *(_spread([r2_of(head, part) for head in heads]) if heads else ()),
        ]
        rows.append([f"{first}-{last}", *map(_figure, figures)])
    return table(Table(columns, rows, ()))


def _by_updates(results: Sequence[dict]) -> str:
    columns = ("updates", "checkpoint", "stack", "R^2 of E E^T", "first block")
    columns += ("R^2 of the heads: mean", "first block")
    rows = []
    for result in results:
        for name, stack in result["stacks"].items():
            if stack["positions"]:
                figures = [r2_of(stack["positions"]["r2"], part) for part in (None, 0)]
                for part in (None, 0):
                    figures.append(_spread([r2_of(head, part) for head in _heads(stack)])[0])
                cells = [f"{result['updates']:,}", result["checkpoint"], stack_title(name)]
                rows.append([*cells, *map(_figure, figures)])
    return table(Table(columns, rows, ()))


def _heads(stack: dict) -> list[dict]:
    return [head for layer in stack["attention"] for head in layer["heads"]]


def _spread(r2: Sequence[float | None]) -> tuple[float | None, ...]:
    """Mean, lowest and highest of those that are defined."""
    defined = [x for x in r2 if x is not None]
    return (fmean(defined), min(defined), max(defined)) if defined else (None, None, None)


def _figure(r2: float | None) -> str:
    return "undefined" if r2 is None else f"{r2:.3f}"
