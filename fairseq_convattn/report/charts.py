"""Learning curves as SVG: one colour per mixer, for light and dark pages."""

import io
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from .train_log import Point

# On light and on dark paper; on light, those of docs/family.svg.
COLOURS = {
    "dynamic": ("#2f8577", "#5cc9b3"),
    "lightweight": ("#3d6fa5", "#7db4ee"),
    "composite": ("#a8483f", "#f08d84"),
    "tisa": ("#c48a00", "#e6b252"),
    "attention": ("#84589b", "#c9a0df"),
    "other": ("#6b6b70", "#a0a0a6"),
}
_BASELINE = "attention"
# What is drawn in these has the page's own colours.
_INK, _CONTEXT, _GRID = "#000000", "#cfcfd4", "#ececef"
_VARIABLES = {
    **{light: name for name, (light, _) in COLOURS.items()},
    **{_INK: "rule", _CONTEXT: "rule", _GRID: "faint"},
}
_DASHES = ((), (6, 2.5), (1.5, 2), (9, 2, 1.5, 2), (3, 2))
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "convattn",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.scale_dashes": False,
}


class Line(NamedTuple):
    """One system's curve.

    Attributes:
        colour: a key of ``COLOURS``.
        dash: its place among the systems of this colour.
        points: what is drawn boldly, the mean over seeds.
        seeds: the curve of each, drawn faintly if there are several.
    """

    colour: str
    dash: int
    points: Sequence[Point]
    seeds: Sequence[Sequence[Point]]

    @property
    def dashes(self) -> tuple[float, ...]:
        """Lengths of strokes and gaps, in points; none of a solid line."""
        return _DASHES[self.dash % len(_DASHES)]

    @property
    def has_seeds(self) -> bool:
        return len(self.seeds) > 1

    @property
    def width(self) -> float:
        """In points. The baseline is thinner than what is compared with it."""
        return 1.3 if self.colour == _BASELINE else 2


def mean_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean at the updates that all curves have."""
    known = [dict(curve) for curve in curves if curve]
    if not known:
        return []
    common = sorted(set.intersection(*(set(curve) for curve in known)))
    return [(x, sum(curve[x] for curve in known) / len(known)) for x in common]


def chart(
    lines: Sequence[Line], context: Sequence[Line], label: str, logarithmic: bool = False
) -> str | None:
    """An SVG of curves against updates, whose colours are variables of the page; None if there
    are no points.

    Args:
        context: more lines, which are drawn in grey behind.
        label: what the vertical axis has.
        logarithmic: whether it is; for values above 0.
    """
    if not any(line.points for line in lines):
        return None
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 3), layout="constrained")
        axis = figure.subplots()
        for line in context:
            axis.plot(*zip(*line.points, strict=True), color=_CONTEXT, linewidth=0.8)
        for line in lines:
            _draw(axis, line)
        axis.set(xlabel="updates", ylabel=label)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        if logarithmic:
            _make_logarithmic(axis)
        axis.grid(axis="y", color=_GRID, linewidth=0.4)
        return _svg(figure)


def _draw(axis: Axes, line: Line) -> None:
    colour, _ = COLOURS[line.colour]
    if line.has_seeds:
        for seed in line.seeds:
            axis.plot(*zip(*seed, strict=True), color=colour, linewidth=0.7, alpha=0.35)
    axis.plot(
        *zip(*line.points, strict=True),
        color=colour,
        linewidth=line.width,
        linestyle=(0, line.dashes) if line.dashes else "-",
        marker="o" if len(line.points) == 1 else None,
    )


def _make_logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5)) if high > 5 * low else MaxNLocator(5, steps=[1, 2, 5, 10])
    )
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter("{x:,g}")


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    return text
