"""The analysis of checkpoints as plain data, which JSON takes, and as Markdown."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from ..checkpoints.files import CheckpointError
from ..report.markdown import Table, table
from .checkpoint import Contents, Stack, read_contents, stack_title
from .curves import Curves
from .findings import findings
from .toeplitz import diagonal_means, r2_by_positions, white_noise_r2


def analyse(
    paths: Sequence[str | Path],
    block: int,
    progress: Callable[[str | Path], None] = lambda path: None,
) -> tuple[list[dict], Contents]:
    """Analyse checkpoints, in the order of their updates.

    Args:
        paths: one checkpoint or, for R^2 against updates, several.
        block: positions in a block.
        progress: called with each path before it is read.

    Returns:
        What :func:`analysis` says of each, and what the last of them holds.

    Raises:
        CheckpointError: one cannot be read or has nothing to analyse, or several are not of
            one model or do not say after how many updates they were written.
    """
    results: list[dict] = []
    last: Contents | None = None
    for path in paths:
        progress(path)
        contents = read_contents(path)
        if len(paths) > 1 and contents.updates is None:
            raise CheckpointError(f"{path} does not say after how many updates it was written")
        results.append(analysis(contents, block))
        if _shape(results[-1]) != _shape(results[0]):
            raise CheckpointError(f"{path} and {paths[0]} are not of the same model")
        if last is None or contents.updates >= last.updates:
            last = contents
    if last is None:
        raise CheckpointError("there is no checkpoint to analyse")
    return sorted(results, key=lambda result: result["updates"] or 0), last


def analysis(contents: Contents, block: int) -> dict[str, Any]:
    """All that is known of a checkpoint; an R^2 is None where it is not defined.

    Args:
        contents: what :func:`read_contents` found.
        block: positions in a block.
    """
    return {
        "checkpoint": contents.path,
        "updates": contents.updates,
        "stacks": {stack.name: _stack(stack, block) for stack in contents.stacks},
    }


def head_products(stack: Stack) -> Iterator[tuple[tuple[int, ...], Iterator[Tensor]]]:
    """``F^ = E W_Q W_K^T E^T`` of every head, ``[positions, positions]``, by layers."""
    for layers, query, key in stack.attention:
        queries = stack.projected @ query.mT  # [heads, positions, head_dim]
        keys = stack.projected @ key.mT
        yield layers, (q @ k.T for q, k in zip(queries, keys, strict=True))


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


def _stack(stack: Stack, block: int) -> dict[str, Any]:
    return {
        "notes": stack.notes,
        "positions": _positions(stack, block) if stack.positions else None,
        "attention": [
            {"layers": list(layers), "heads": [r2_by_positions(p, block) for p in products]}
            for layers, products in head_products(stack)
        ],
        "terms": {
            term: [_curves(curves) for curves in by_layer] for term, by_layer in stack.terms.items()
        },
        "kernels": {
            convolved: [
                {**_curves(kernels), "mean": kernels.values.mean(dim=0).tolist()}
                for kernels in by_layer
            ]
            for convolved, by_layer in stack.kernels.items()
        },
    }


def _positions(stack: Stack, block: int) -> dict[str, Any]:
    table = stack.positions.table
    product = table @ table.T
    return {
        "kind": stack.positions.kind,
        "number": table.size(0),
        "width": table.size(1),
        "padding_rows": stack.positions.padding_rows,
        "r2": r2_by_positions(product, block),
        "white_noise_r2": {
            "overall": white_noise_r2(*table.shape),
            "block": white_noise_r2(min(block, table.size(0)), table.size(1)),
        },
        "diagonal_means": diagonal_means(product).tolist(),
    }


def _curves(curves: Curves) -> dict[str, Any]:
    return {
        "layers": list(curves.layers),
        "distances": curves.distances.tolist(),
        "heads": curves.values.tolist(),
    }


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
