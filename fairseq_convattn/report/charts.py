"""Learning curves as SVG: one colour per mixer, for light and dark pages."""

import io
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from .systems import System
from .train_log import Point, TrainLog

# On light and on dark paper; on light, those of docs/family.svg.
COLOURS = {
    "dynamic": ("#2f8577", "#5cc9b3"),
    "lightweight": ("#3d6fa5", "#7db4ee"),
    "composite": ("#a8483f", "#f08d84"),
    "tisa": ("#c48a00", "#e6b252"),
    "attention": ("#84589b", "#c9a0df"),
    "short_conv": ("#73782f", "#bcc26f"),
    "other": ("#6b6b70", "#a0a0a6"),
}
# Placeholders for the colours of the page.
_INK, _GRID = "#000000", "#ececef"
_VARIABLES = {**{light: name for name, (light, _) in COLOURS.items()}, _INK: "soft", _GRID: "faint"}
_DASHES = ("-", "--", ":", "-.")  # of the systems of one colour
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "convattn",
    "text.parse_math": False,  # labels have users' options
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def learning_curves(systems: Sequence[System]) -> str | None:
    """An SVG of training loss and validation perplexity against updates, whose colours are
    variables of the page; None if there is no training log."""
    logged = [system for system in systems if any(run.log.updates for run in system.runs)]
    if not logged:
        return None
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.2, 3 + 0.2 * (len(logged) // 3)), layout="constrained")
        loss, perplexity = figure.subplots(1, 2)
        _draw(loss, logged, lambda log: log.loss)
        _draw(perplexity, logged, lambda log: log.perplexity)
        loss.set_ylabel("loss (base 2)")
        perplexity.set_ylabel("validation perplexity")
        if any(run.log.perplexity for system in logged for run in system.runs):
            _make_logarithmic(perplexity)
        look = {"loc": "outside lower left", "ncols": 3, "frameon": False}
        figure.legend(*loss.get_legend_handles_labels(), **look)
        return _svg(figure)


def mean_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean at the updates that all curves have."""
    known = [dict(curve) for curve in curves]
    common = set.intersection(*map(set, known)) if known else ()
    return [(x, fmean(curve[x] for curve in known)) for x in sorted(common)]


def _draw(
    axis: Axes, systems: Sequence[System], points: Callable[[TrainLog], Sequence[Point]]
) -> None:
    """Draw the mean over seeds boldly and single seeds faintly; systems of one mixer differ in
    dashes."""
    before: Counter[str] = Counter()
    for system in systems:
        name = system.mixer if system.mixer in COLOURS else "other"
        color, dashes = COLOURS[name][0], _DASHES[before[name] % len(_DASHES)]
        before[name] += 1
        seeds = [found for run in system.runs if (found := points(run.log))]
        for seed in seeds if len(seeds) > 1 else ():
            axis.plot(*zip(*seed, strict=True), color=color, linewidth=0.7, alpha=0.35)
        mean = mean_curve(seeds)
        look = {"color": color, "linestyle": dashes, "marker": "o" if len(mean) == 1 else None}
        axis.plot([x for x, _ in mean], [y for _, y in mean], label=system.label, **look)
    axis.set(xlabel="updates")
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.grid(axis="y", color=_GRID, linewidth=0.4)


def _make_logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    few = MaxNLocator(5, steps=[1, 2, 5, 10])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 5 * low else few)
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
