"""The analysis as figures, with matplotlib."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from ..ops.attention import TABLE_TERMS
from .checkpoint import layer_names, stack_title
from .curves import VECTOR_TERMS
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
_FLAT = 0.01  # share of the range; where a curve is closer to its end value, nothing is drawn


def figures(
    results: Sequence[dict], tables: Mapping[str, Tensor], block: int
) -> Iterator[tuple[str, Figure]]:
    """Every figure and its name, without suffix.

    Args:
        results: of :func:`checkpoint.analysis`, one per checkpoint, in order.
        tables: the learned positions of the last of them, by stack.
        block: positions in a block.
    """
    for stack, result in results[-1]["stacks"].items():
        name, title = re.sub(r"\W+", "-", stack), stack_title(stack)
        if stack in tables:
            yield f"{name}-positions", positions_figure(title, tables[stack])
            if len(tables[stack]) > block:
                yield f"{name}-blocks", blocks_figure(title, result["positions"])
        if result["attention"]:
            yield f"{name}-heads", heads_figure(title, result["attention"])
        for term, by_layer in result["terms"].items():
            yield f"{name}-{term}", curves_figure(title, term, by_layer)
        for convolved, by_layer in result["kernels"].items():
            yield f"{name}-kernels-{convolved}", kernels_figure(title, convolved, by_layer)
            mean = mean_kernels_figure(title, convolved, by_layer)
            yield f"{name}-mean-kernels-{convolved}", mean
    if len(results) > 1 and any(x["positions"] for x in results[-1]["stacks"].values()):
        yield "r2-by-updates", updates_figure(results)


@rc_context(_STYLE)
def positions_figure(title: str, table: Tensor) -> Figure:
    """``E E^T`` of the position embeddings, its Toeplitz fit, and what the fit leaves.

    Args:
        table: E, ``[positions, width]``.
    """
    product = table @ table.T
    fit, r2 = toeplitz_fit(product), toeplitz_r2(product)
    figure = Figure(figsize=(_WIDTH, 2.75))
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    # of most entries: a few on the diagonal are far larger
    limit = max(numpy.quantile(product.abs().numpy(), 0.995), 1e-12)
    residual = "residual" if r2 is None else f"residual, $R^2$ = {r2:.2f}"
    panels = {_PRODUCT: product, "Toeplitz fit": fit, residual: product - fit}
    look = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "interpolation": "none"}
    for axis, (name, matrix) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(matrix.numpy(), **look)
        axis.set(title=name, xlabel="position $j$")
    axes[0].set_ylabel("position $i$")
    figure.suptitle(f"{title}, {table.size(0)} learned positions, {table.size(1)} wide")
    figure.colorbar(image, ax=axes, extend="both", shrink=0.8)
    return figure


@rc_context(_STYLE)
def blocks_figure(title: str, positions: dict) -> Figure:
    """R^2 of ``E E^T`` block by block, and of the first n positions."""
    figure = Figure(figsize=(_WIDTH * 0.7, 3))
    axis = figure.subplots()
    blocks, prefixes = positions["r2"]["blocks"], positions["r2"]["prefixes"]
    starts = [part["positions"][0] for part in blocks]
    ends = [part["positions"][1] + 1 for part in blocks]
    heights, rising = (_drawn([part["r2"] for part in parts]) for parts in (blocks, prefixes))
    look = {"color": "#9ecae1", "edgecolor": "white", "align": "edge", "label": "each block"}
    axis.bar(starts, heights, numpy.subtract(ends, starts), **look)
    axis.plot(ends, rising, "o-", color=_TABLE_COLOR, clip_on=False, label="the first $n$")
    several = numpy.linspace(1, ends[-1], 200)
    noise = [white_noise_r2(n, positions["width"]) for n in several]
    axis.plot(several, noise, "--", color="0.4", label="the first $n$ of white noise")
    axis.set(
        title=f"{title}, learned positions",
        xlabel="position; $n$",
        ylabel=f"{_R2} of {_PRODUCT}",
        xlim=(0, ends[-1]),
        ylim=(0, 1.02),
        xticks=[0, *ends[:: math.ceil(len(ends) / 8)]],
    )
    axis.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


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
        r2 = _drawn([[r2_of(head, part) for head in layer["heads"]] for layer in attention])
        image = axis.imshow(r2, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        axis.set(title=name, xlabel="head", xticks=_ticks(heads))
        for (layer, head), value in numpy.ndenumerate(r2):
            color = "black" if value > 0.6 else "white"
            look = {"color": color, "ha": "center", "va": "center", "fontsize": 6.5}
            axis.text(head, layer, f"{value:.2f}".removeprefix("0"), **look)
    _name_layers(axes[0], attention)
    figure.suptitle(f"{title}, heads: {_HEAD_PRODUCT}")
    figure.colorbar(image, ax=axes, label=_R2)
    return figure


@rc_context(_STYLE)
def curves_figure(title: str, term: str, by_layer: Sequence[dict]) -> Figure:
    """f(j - i) of a relative term: a panel for a layer, a line for a head."""
    figure, axes = _panels(title, by_layer, height=1.7, sharex=True, sharey=True)
    heads = max(len(curves["heads"]) for curves in by_layer)
    # stops before a yellow that is invisible on white
    colors = colormaps["viridis"](numpy.linspace(0, 0.93, heads))
    marker = "." if term in TABLE_TERMS else None
    for axis, curves in zip(axes, by_layer, strict=True):
        axis.axhline(0, color="0.7", linewidth=0.6)
        axis.axvline(0, color="0.7", linewidth=0.6)
        for head, values in enumerate(curves["heads"]):
            look = {"color": colors[head], "label": f"head {head}", "marker": marker}
            axis.plot(curves["distances"], values, linewidth=1, markersize=3, **look)
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
        axes[0].xaxis.set_major_locator(_whole_numbers())
    if heads > 1:
        scale = ScalarMappable(Normalize(-0.5, heads - 0.5), ListedColormap(colors))
        figure.colorbar(scale, ax=axes, label="head", ticks=_ticks(heads)).minorticks_off()
    figure.supxlabel(_DISTANCE)
    figure.supylabel("vector length" if term in VECTOR_TERMS else "$f(j - i)$")
    figure.suptitle(f"{term} term, heads")
    return figure


def _visible(by_layer: Sequence[dict]) -> tuple[int, int]:
    """The range of distances in which some curve still differs from its end values."""
    distances = by_layer[0]["distances"]
    values = numpy.array([curves["heads"] for curves in by_layer])  # [layers, heads, distances]
    tolerance = _FLAT * numpy.ptp(values, axis=(1, 2), keepdims=True)
    moved, moves = (
        (abs(values - end) > tolerance).any(axis=(0, 1)).nonzero()[0]
        for end in (values[..., :1], values[..., -1:])
    )
    if not len(moved) or not len(moves):
        return distances[0], distances[-1]
    return distances[max(0, moved[0] - 1)], distances[: moves[-1] + 2][-1]


@rc_context(_STYLE)
def kernels_figure(title: str, convolved: str, by_layer: Sequence[dict]) -> Figure:
    """Kernels, heads by distances, a panel for a layer."""
    heads = max(len(kernels["heads"]) for kernels in by_layer)
    figure, axes = _panels(title, by_layer, height=max(1.5, 0.7 + 0.11 * heads), sharey=True)
    taps, look, bar = _weights(by_layer)
    for axis, kernels, rows in zip(axes, by_layer, taps, strict=True):
        image = _draw_taps(axis, kernels["distances"], rows, look)
        axis.set_yticks(_ticks(heads))
    figure.supxlabel(_DISTANCE)
    figure.supylabel("head")
    figure.suptitle(f"lightweight convolutions of the {convolved}, heads")
    figure.colorbar(image, ax=axes, **bar).minorticks_off()
    return figure


@rc_context(_STYLE)
def mean_kernels_figure(title: str, convolved: str, by_layer: Sequence[dict]) -> Figure:
    """The mean over the heads of every layer's kernels, layers by distances."""
    taps, look, bar = _weights(by_layer)
    low = min(kernels["distances"][0] for kernels in by_layer)
    high = max(kernels["distances"][-1] for kernels in by_layer)
    means = numpy.full((len(by_layer), high - low + 1), math.nan)
    for row, kernels, values in zip(means, by_layer, taps, strict=True):
        row[numpy.subtract(kernels["distances"], low)] = values.mean(axis=0)
    figure = Figure(figsize=(_WIDTH * 0.8, max(1.9, 1.1 + 0.2 * len(by_layer))))
    axis = figure.subplots()
    axis.set_facecolor("0.85")
    image = _draw_taps(axis, range(low, high + 1), means, look)
    _name_layers(axis, by_layer)
    axis.set_xlabel(_DISTANCE)
    figure.suptitle(f"{title}, convolutions of the {convolved}, mean of the heads")
    figure.colorbar(image, ax=axis, **bar).minorticks_off()
    return figure


def _draw_taps(axis: Axes, distances: Sequence[int], rows: numpy.ndarray, look: dict) -> AxesImage:
    extent = (distances[0] - 0.5, distances[-1] + 0.5, len(rows) - 0.5, -0.5)
    axis.axvline(0, color="0.2", linewidth=0.5, linestyle=":")
    axis.xaxis.set_major_locator(_whole_numbers())
    return axis.imshow(rows, aspect="auto", interpolation="none", extent=extent, **look)


def _weights(by_layer: Sequence[dict]) -> tuple[list[numpy.ndarray], dict, dict]:
    """Values to draw for kernels ``[heads, kernel_size]``, with colour map and label. Taps that sum
    to 1 are divided by those of a uniform kernel, so that kernels of different lengths can be
    compared.
    """
    taps = [numpy.array(kernels["heads"]) for kernels in by_layer]
    if all(numpy.allclose(x.sum(axis=1), 1) and (x >= 0).all() for x in taps):
        taps = [x * x.shape[1] for x in taps]
        most = max(2.0, *(x.max() for x in taps))
        bar = {"label": "weight / uniform weight", "ticks": LogLocator(2), "format": "{x:.2g}"}
        return taps, {"cmap": "RdBu_r", "norm": LogNorm(1 / most, most, clip=True)}, bar
    most = max(abs(x).max() for x in taps) or 1.0
    return taps, {"cmap": "RdBu_r", "norm": Normalize(-most, most)}, {"label": "weight"}


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
    positions = stacks[-1]["positions"]
    blocks = positions["r2"]["blocks"]
    first = blocks[0]["positions"][1] + 1
    parts = [(None, "all", positions["number"], "-"), (0, f"first {first}", first, "--")]
    for part, where, number, style in parts[: len(blocks)]:
        r2 = _drawn([r2_of(stack["positions"]["r2"], part) for stack in stacks])
        look = {"linestyle": style, "marker": "s" if part == 0 else "o"}
        axis.plot(updates, r2, color=_TABLE_COLOR, label=f"{_PRODUCT}, {where}", **look)
        noise = white_noise_r2(number, positions["width"])
        axis.axhline(noise, color="0.4", linewidth=0.8, linestyle=style)
        heads = [
            [r2_of(head, part) for layer in stack["attention"] for head in layer["heads"]]
            for stack in stacks
        ]
        if all(heads):
            heads = _drawn(heads)
            axis.plot(updates, heads.mean(1), color=_HEADS_COLOR, label=f"heads, {where}", **look)
            shade = {"color": _HEADS_COLOR, "alpha": 0.15, "linewidth": 0}
            axis.fill_between(updates, heads.min(1), heads.max(1), **shade)
    axis.plot([], [], color="0.4", linewidth=0.8, label=f"{_PRODUCT} of white noise")


def _drawn(r2: Sequence) -> numpy.ndarray:
    """Undefined values as NaN, which matplotlib leaves out."""
    return numpy.array(r2, dtype=float)


def _panels(
    title: str, by_layer: Sequence[dict], height: float, **share: bool
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
        axis.set_title(f"{title} {layer_names(curves['layers'])}")
    return figure, axes[:count]


def _name_layers(axis: Axes, by_layer: Sequence[dict]) -> None:
    names = [layer_names(one["layers"]).partition(" ")[2] for one in by_layer]
    axis.set_yticks(range(len(names)), names)
    axis.set_ylabel("layer")


def _ticks(heads: int) -> range:
    return range(0, heads, 1 if heads <= 8 else math.ceil(heads / 8))


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(5, integer=True, steps=[1, 2, 5, 10])
