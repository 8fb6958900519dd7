"""The analysis as figures, with matplotlib."""

import math
import re
from collections.abc import Iterator, Sequence

import numpy
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from ..ops.attention import TABLE_TERMS
from .checkpoint import Contents, Stack, layer_names, stack_title
from .curves import VECTOR_TERMS, Curves
from .report import r2_of
from .toeplitz import toeplitz_fit, toeplitz_r2, white_noise_r2

_WIDTH = 7.2  # inches, a page's
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "figure.titlesize": 9.5,
    "figure.labelsize": 8,
    "legend.fontsize": 7.5,
    "lines.markersize": 3.5,
    "figure.constrained_layout.use": True,
}
_PRODUCT = "$E E^\\mathsf{T}$"
_HEAD_PRODUCT = "$E W_Q W_K^\\mathsf{T} E^\\mathsf{T}$"
_DISTANCE = "distance $j - i$"
_R2 = "$R^2$ of the Toeplitz fit"
_COLUMNS = 4
_TABLE_COLOR, _HEADS_COLOR = "#08519c", "#d95f02"
_FLAT = 0.01  # of a curve's range: nearer to its value at the end is not drawn
_LEGEND = 5  # lines at most; a colour bar serves for more heads
_WHOLE_NUMBERS = {"nbins": 6, "integer": True, "steps": [1, 2, 5, 10]}


def figures(results: Sequence[dict], last: Contents, block: int) -> Iterator[tuple[str, Figure]]:
    """Every figure and its name, without suffix.

    Args:
        results: what :func:`report.analysis` says of checkpoints, in order.
        last: what the last of them holds.
        block: positions in a block.
    """
    for stack in last.stacks:
        name = re.sub(r"\W+", "-", stack.name)
        title = stack_title(stack.name)
        result = results[-1]["stacks"][stack.name]
        if stack.positions and stack.positions.kind == "learned":
            yield f"{name}-positions", positions_figure(title, stack, block)
            if stack.positions.table.size(0) > block:
                yield f"{name}-blocks", blocks_figure(title, result["positions"])
        if result["attention"]:
            yield f"{name}-heads", heads_figure(title, result["attention"])
        for term, by_layer in stack.terms.items():
            yield f"{name}-{term}", curves_figure(title, term, by_layer)
        for convolved, by_layer in stack.kernels.items():
            yield f"{name}-kernels-{convolved}", kernels_figure(title, convolved, by_layer)
            mean = mean_kernels_figure(title, convolved, by_layer)
            yield f"{name}-mean-kernels-{convolved}", mean
    if len(results) > 1 and any(stack.positions for stack in last.stacks):
        yield "r2-by-updates", updates_figure(results)


@rc_context(_STYLE)
def positions_figure(title: str, stack: Stack, block: int) -> Figure:
    """``E E^T`` of the position embeddings, its Toeplitz fit, and what the fit leaves."""
    table = stack.positions.table
    product = table @ table.T
    fit = toeplitz_fit(product)
    r2 = toeplitz_r2(product)
    figure = Figure(figsize=(_WIDTH, 2.75))
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    # of most entries: a few on the diagonal are far larger
    limit = max(numpy.quantile(product.abs().numpy(), 0.995), 1e-12)
    residual = "residual" if r2 is None else f"residual, $R^2$ = {r2:.2f}"
    panels = {_PRODUCT: product, "Toeplitz fit": fit, residual: product - fit}
    for axis, (name, matrix) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(
            matrix.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="none"
        )
        axis.set(title=name, xlabel="position $j$")
        _mark_blocks(axis, table.size(0), block)
    axes[0].set_ylabel("position $i$")
    figure.suptitle(f"{title}, {table.size(0)} learned positions, {table.size(1)} wide")
    figure.colorbar(image, ax=axes, extend="both", shrink=0.8)
    return figure


def _mark_blocks(axis: Axes, positions: int, block: int) -> None:
    if positions <= block:
        return
    step = block * math.ceil(positions / block / 6)
    ticks = range(0, positions, step)
    axis.set(xticks=ticks, yticks=ticks)
    for edge in range(block, positions, block):
        axis.axvline(edge - 0.5, color="0.3", linewidth=0.4, linestyle=":")
        axis.axhline(edge - 0.5, color="0.3", linewidth=0.4, linestyle=":")


@rc_context(_STYLE)
def blocks_figure(title: str, positions: dict) -> Figure:
    """R^2 of ``E E^T`` block by block, and of the first n positions."""
    figure = Figure(figsize=(_WIDTH * 0.7, 3))
    axis = figure.subplots()
    blocks, prefixes = positions["r2"]["blocks"], positions["r2"]["prefixes"]
    starts = [part["positions"][0] for part in blocks]
    counts = [part["positions"][1] + 1 for part in prefixes]
    widths = [end - start for start, end in zip(starts, counts, strict=True)]
    look = {"color": "#9ecae1", "edgecolor": "white"}
    axis.bar(starts, _heights(blocks), widths, align="edge", label="each block", **look)
    look = {"color": _TABLE_COLOR, "clip_on": False}
    axis.plot(counts, _heights(prefixes), "o-", label="the first $n$", **look)
    several = numpy.linspace(1, counts[-1], 200)
    noise = [white_noise_r2(n, positions["width"]) for n in several]
    axis.plot(several, noise, "--", color="0.4", label="the first $n$ of white noise")
    axis.set(
        title=f"{title}, learned positions",
        xlabel="position; $n$",
        ylabel=f"{_R2} of {_PRODUCT}",
        xlim=(0, counts[-1]),
        ylim=(0, 1.02),
        xticks=[0, *counts[:: math.ceil(len(counts) / 8)]],
    )
    axis.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _heights(parts: Sequence[dict]) -> list[float]:
    return [_drawn(part["r2"]) for part in parts]


@rc_context(_STYLE)
def heads_figure(title: str, attention: Sequence[dict]) -> Figure:
    """R^2 of ``E W_Q W_K^T E^T`` for every layer and head."""
    first = attention[0]["heads"][0]["blocks"][0]["positions"][1] + 1
    whole = attention[0]["heads"][0]["prefixes"][-1]["positions"][1] + 1
    panels: dict[str, int | None] = {f"all {whole} positions": None}
    if first < whole:
        panels[f"the first {first}"] = 0
    heads = max(len(layer["heads"]) for layer in attention)
    width = min(_WIDTH, 1.6 + 0.42 * heads * len(panels))
    figure = Figure(figsize=(max(3.6, width), max(2.2, 1.3 + 0.3 * len(attention))))
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (name, part) in zip(axes, panels.items(), strict=True):
        r2 = [[_drawn(r2_of(head, part)) for head in layer["heads"]] for layer in attention]
        image = axis.imshow(r2, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        axis.set(title=name, xlabel="head", xticks=_ticks(heads))
        _write_values(axis, r2)
    layers = [layer["layers"] for layer in attention]
    axes[0].set_yticks(range(len(layers)), [_short(some) for some in layers])
    axes[0].set_ylabel("layer")
    figure.suptitle(f"{title} {layer_names(sorted(sum(layers, [])))}, heads: {_HEAD_PRODUCT}")
    figure.colorbar(image, ax=axes, label=_R2)
    return figure


def _write_values(axis: Axes, rows: Sequence[Sequence[float]]) -> None:
    for layer, row in enumerate(rows):
        for head, value in enumerate(row):
            text = "-" if math.isnan(value) else f"{value:.2f}".removeprefix("0")
            color = "white" if not value > 0.6 else "black"
            axis.text(head, layer, text, color=color, ha="center", va="center", fontsize=6.5)


@rc_context(_STYLE)
def curves_figure(title: str, term: str, by_layer: Sequence[Curves]) -> Figure:
    """f(j - i) of a relative term: a panel for a layer, a line for a head."""
    figure, axes = _panels(title, by_layer, height=1.7, sharex=True, sharey=True)
    heads = max(curves.values.size(0) for curves in by_layer)
    style = {"linestyle": "-", "marker": "." if term in TABLE_TERMS else None, "markersize": 3}
    for axis, (_, distances, values) in zip(axes, by_layer, strict=True):
        axis.axhline(0, color="0.7", linewidth=0.6)
        axis.axvline(0, color="0.7", linewidth=0.6)
        for head, curve in enumerate(values.numpy()):
            look = {"color": _color(head, heads), "label": f"head {head}"}
            axis.plot(distances.numpy(), curve, linewidth=1, **look, **style)
        axis.margins(y=0.08)
    first, last = _visible(by_layer)
    if first < last:
        axes[0].set_xlim(first, last)
    if term == "t5":  # its buckets grow so
        axes[0].set_xscale("symlog", linthresh=8, linscale=1.5)
        axes[0].xaxis.set_minor_locator(NullLocator())
        axes[0].set_xticks([x for x in (-64, -8, 0, 8, 64) if first < x < last or not x])
        axes[0].xaxis.set_major_formatter("{x:.0f}")
    else:
        axes[0].xaxis.set_major_locator(MaxNLocator(**_WHOLE_NUMBERS))
    figure.supxlabel(_DISTANCE)
    figure.supylabel("vector length" if term in VECTOR_TERMS else "$f(j - i)$")
    _name_heads(figure, axes, heads)
    figure.suptitle(f"{term} term, heads")
    return figure


def _visible(by_layer: Sequence[Curves]) -> tuple[int, int]:
    """The distances between which some curve is not yet what it is at the end."""
    first, last = [], []
    for _, distances, values in by_layer:
        tolerance = _FLAT * (values.max() - values.min())
        moved = ((values - values[:, :1]).abs() > tolerance).any(dim=0).nonzero()
        moves = ((values - values[:, -1:]).abs() > tolerance).any(dim=0).nonzero()
        if len(moved):
            first.append(distances[max(0, int(moved[0]) - 1)].item())
            last.append(distances[min(len(distances) - 1, int(moves[-1]) + 1)].item())
    distances = by_layer[0].distances
    return min(first, default=distances[0].item()), max(last, default=distances[-1].item())


@rc_context(_STYLE)
def kernels_figure(title: str, convolved: str, by_layer: Sequence[Curves]) -> Figure:
    """Kernels, heads by distances, a panel for a layer."""
    heads = max(kernels.values.size(0) for kernels in by_layer)
    height = max(1.5, 0.7 + 0.11 * heads)
    figure, axes = _panels(title, by_layer, height=height, sharey=True)
    taps, look = _weights(by_layer)
    for axis, kernels, rows in zip(axes, by_layer, taps, strict=True):
        image = _draw_taps(axis, kernels.distances, rows, look)
        axis.set_yticks(_ticks(heads))
    figure.supxlabel(_DISTANCE)
    figure.supylabel("head")
    figure.suptitle(f"lightweight convolutions of the {convolved}, heads")
    _add_bar(figure, image, axes)
    return figure


@rc_context(_STYLE)
def mean_kernels_figure(title: str, convolved: str, by_layer: Sequence[Curves]) -> Figure:
    """The mean over the heads of every layer's kernels, layers by distances."""
    taps, look = _weights(by_layer)
    low = min(kernels.distances[0].item() for kernels in by_layer)
    high = max(kernels.distances[-1].item() for kernels in by_layer)
    means = torch.full((len(by_layer), high - low + 1), math.nan, dtype=torch.double)
    for row, kernels, values in zip(means, by_layer, taps, strict=True):
        row[kernels.distances - low] = values.mean(dim=0)
    figure = Figure(figsize=(_WIDTH * 0.8, max(1.9, 1.1 + 0.2 * len(by_layer))))
    axis = figure.subplots()
    axis.set_facecolor("0.85")
    image = _draw_taps(axis, torch.arange(low, high + 1), means, look)
    axis.set_yticks(range(len(by_layer)), [_short(kernels.layers) for kernels in by_layer])
    axis.set(xlabel=_DISTANCE, ylabel="layer")
    layers = layer_names(sorted(layer for kernels in by_layer for layer in kernels.layers))
    figure.suptitle(f"{title} {layers}, convolutions of the {convolved}, mean of the heads")
    _add_bar(figure, image, axis)
    return figure


def _draw_taps(axis: Axes, distances: Tensor, rows: Tensor, look: dict) -> AxesImage:
    edges = distances[0].item() - 0.5, distances[-1].item() + 0.5
    extent = (*edges, len(rows) - 0.5, -0.5)
    axis.axvline(0, color="0.2", linewidth=0.5, linestyle=":")
    axis.xaxis.set_major_locator(MaxNLocator(**_WHOLE_NUMBERS))
    return axis.imshow(rows.numpy(), aspect="auto", interpolation="none", extent=extent, **look)


def _weights(by_layer: Sequence[Curves]) -> tuple[list[Tensor], dict]:
    """What to draw of kernels, and its colours.

    Taps that sum to 1 are relative to those of a uniform kernel, for else a long kernel
    could not be compared with a short one.
    """
    taps = [kernels.values for kernels in by_layer]
    if all(torch.allclose(x.sum(dim=1), x.new_ones(())) and (x >= 0).all() for x in taps):
        taps = [x * x.size(1) for x in taps]
        most = max(2.0, *(x.max().item() for x in taps))
        return taps, {"cmap": "RdBu_r", "norm": LogNorm(1 / most, most, clip=True)}
    most = max(x.abs().max().item() for x in taps) or 1.0
    return taps, {"cmap": "RdBu_r", "norm": Normalize(-most, most)}


def _add_bar(figure: Figure, image: AxesImage, axes: Axes | Sequence[Axes]) -> None:
    if isinstance(image.norm, LogNorm):
        look = {"label": "weight / uniform weight", "ticks": LogLocator(2), "format": "{x:.2g}"}
        figure.colorbar(image, ax=axes, **look).minorticks_off()
    else:
        figure.colorbar(image, ax=axes, label="weight")


@rc_context(_STYLE)
def updates_figure(results: Sequence[dict]) -> Figure:
    """R^2 against updates: of ``E E^T``, and the mean and range of the heads'."""
    names = [name for name, stack in results[-1]["stacks"].items() if stack["positions"]]
    figure = Figure(figsize=(max(4.6, _WIDTH / 2 * len(names)), 3.2))
    axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        _draw_updates(axis, results, name)
        axis.set(title=stack_title(name), xlabel="updates", xlim=(0, None), ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(_R2)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_updates(axis: Axes, results: Sequence[dict], name: str) -> None:
    updates = [result["updates"] for result in results]
    stacks = [result["stacks"][name] for result in results]
    blocks = stacks[-1]["positions"]["r2"]["blocks"]
    first = blocks[0]["positions"][1] + 1
    parts = {None: ("all", "overall", "o-"), 0: (f"first {first}", "block", "s--")}
    for part, (where, noisy, style) in list(parts.items())[: len(blocks)]:
        r2 = [_drawn(r2_of(stack["positions"]["r2"], part)) for stack in stacks]
        axis.plot(updates, r2, style, color=_TABLE_COLOR, label=f"{_PRODUCT}, {where}")
        noise = stacks[-1]["positions"]["white_noise_r2"][noisy]
        axis.axhline(noise, color="0.4", linewidth=0.8, linestyle=style.strip("os"))
        heads = [
            [_drawn(r2_of(head, part)) for layer in stack["attention"] for head in layer["heads"]]
            for stack in stacks
        ]
        if all(heads):
            heads = numpy.array(heads)
            look = {"color": _HEADS_COLOR, "label": f"heads, {where}"}
            axis.plot(updates, heads.mean(1), style, **look)
            look = {"color": _HEADS_COLOR, "alpha": 0.15, "linewidth": 0}
            axis.fill_between(updates, heads.min(1), heads.max(1), **look)
    axis.plot([], [], color="0.4", linewidth=0.8, label=f"{_PRODUCT} of white noise")


def _drawn(r2: float | None) -> float:
    """As matplotlib leaves out what is not defined."""
    return math.nan if r2 is None else r2


def _panels(
    title: str, by_layer: Sequence[Curves], height: float, **share: bool
) -> tuple[Figure, list[Axes]]:
    """A grid of panels, ``height`` inches each, with the layers' names."""
    count = len(by_layer)
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(_WIDTH * max(0.55, columns / _COLUMNS), height * rows + 0.9))
    axes = list(figure.subplots(rows, columns, squeeze=False, **share).flat)
    for axis in axes[count:]:
        axis.remove()
    for axis in axes[max(0, count - columns) : count]:  # the lowest of their columns
        axis.tick_params(labelbottom=True)
    for axis, curves in zip(axes, by_layer, strict=False):
        axis.set_title(f"{title} {layer_names(curves.layers)}")
    return figure, axes[:count]


def _name_heads(figure: Figure, axes: Sequence[Axes], heads: int) -> None:
    """A legend of few heads, a colour bar of many; nothing of one that all share."""
    if 1 < heads <= _LEGEND:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    elif heads > 1:
        colors = figure.colorbar(_scale(heads), ax=axes, label="head", ticks=_ticks(heads))
        colors.minorticks_off()


def _scale(heads: int) -> ScalarMappable:
    colors = ListedColormap([_color(head, heads) for head in range(heads)])
    return ScalarMappable(Normalize(-0.5, heads - 0.5), colors)


def _color(head: int, heads: int) -> tuple:
    if heads <= _LEGEND:
        return colormaps["tab10"](head)
    return colormaps["viridis"](0.93 * head / (heads - 1))  # up to a yellow that can be seen


def _ticks(heads: int) -> range:
    return range(0, heads, 1 if heads <= 8 else math.ceil(heads / 8))


def _short(layers: Sequence[int]) -> str:
    return layer_names(layers).split(" ", 1)[1]
