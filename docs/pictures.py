#!/usr/bin/env python
"""Draw the pictures of docs/performance*.md and docs/results*.md from docs/data. Needs matplotlib.

    python docs/pictures.py

A model has the same colour in every picture: ours those of the report, fairseq's shades of grey.
A picture's metadata has a digest of what it shows, by which a test knows whether it is current.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from fairseq_convattn.report.charts import COLOURS

DOCS = Path(__file__).resolve().parent
OURS = {name: {"color": light, "linewidth": 2.2} for name, (light, _) in COLOURS.items()}
TRANSFORMER = {"color": "#4a4a50", "linewidth": 1.2, "linestyle": "--"}
LIGHTCONV = {"color": "#a0a0a6", "linewidth": 1.2, "linestyle": "--"}
FLOOR = {"color": "#c8c8cc", "linewidth": 1, "linestyle": ":"}
MODELS = {
    "dynamic": OURS["dynamic"],
    "lightweight": OURS["lightweight"],
    "fairseq's transformer": TRANSFORMER,
    "fairseq's lightconv": LIGHTCONV,
}
CONVOLUTIONS = {
    "native": OURS["dynamic"],
    "compiled loop": {"color": "#8fb8b0", "linewidth": 1.2},
    "attention": {**OURS["attention"], "linewidth": 1.2},
    "fairseq, band": {**LIGHTCONV, "color": "#4a4a50"},
    "fairseq, unfolded": LIGHTCONV,
}
SHORT = {
    name: {**OURS["attention"], "linewidth": 1.4, "linestyle": style}
    for name, style in (("static", ":"), ("headwise", "-."), ("low_rank", "--"))
}
PRE_NORM = {**OURS["attention"], "linewidth": 1.4, "linestyle": (0, (8, 2))}
SYSTEMS = {
    "attention": OURS["attention"],
    **{f"attention, {name}": look for name, look in SHORT.items()},
    "dynamic convolutions": OURS["dynamic"],
}
CORPORA = {  # the runs of a panel, as docs/data/results/ calls them
    "IWSLT14, low-resource": "iwslt14_de_en_low-",
    "Multi30k": "multi30k-",
    "Multi30k, short, rates searched": "multi30k_short-best_",
    "SAMSum": "samsum-",
    "WikiText-2": "wikitext2-",
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "convattn",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#ececef",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def read(name: str) -> list[dict[str, str]]:
    with open(DOCS / "data" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def model_of(label: str) -> str:
    """The key of ``MODELS`` for a model as a table calls it."""
    if "fairseq" not in label or label in CONVOLUTIONS:
        return label
    return f"fairseq's {'lightconv' if 'lightconv' in label else 'transformer'}"


def curves(axis: Axes, rows: Sequence[dict[str, str]], by: str, value: str, looks: dict) -> None:
    """One line per look against the tokens, on a logarithmic axis of the tokens measured."""
    for name, look in looks.items():
        points = [(int(r["tokens"]), float(r[value])) for r in rows if model_of(r[by]) == name]
        if points:
            label = {"native": "ours, compiled"}.get(name, name)
            axis.plot(*zip(*sorted(points), strict=True), label=label, **look)
    ticks = sorted({int(row["tokens"]) for row in rows})
    if ticks[0] < 27:  # the last two are too close for both to be named
        del ticks[-2]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("tokens")


def floor(axis: Axes, rows: Sequence[dict[str, str]], name: str) -> None:
    """A bound, named beside its line."""
    points = [(int(r["tokens"]), float(r["ms"])) for r in rows if r["implementation"] == name]
    axis.plot(*zip(*points, strict=True), label=f"_{name}", **FLOOR)
    place = points[1] if name == "copy" else points[0]
    axis.annotate(name, place, color="#8a8a90", fontsize=7, va="bottom")


def long_inputs() -> Figure:
    rows = read("long_inputs.csv")
    figure = Figure(figsize=(9.5, 5.6))
    axes = figure.subplots(2, 3)
    for column, task in enumerate(("training", "scoring", "generating")):
        shown = [row for row in rows if row["task"] == task]
        for axis, value, title in zip(
            axes[:, column], ("ms", "MiB"), ("ms per token", "MiB"), strict=True
        ):
            curves(axis, shown, "model", value, MODELS)
            axis.set_ylim(bottom=0)
            axis.set_title(f"{task}, {title}", loc="left")
        axes[1, column].yaxis.set_major_formatter("{x:,.0f}")
    _legend(figure)
    return figure


def convolutions() -> Figure:
    rows = [row for row in read("convolutions.csv") if row["run"] == "all lengths"]
    figure = Figure(figsize=(9.5, 6))
    axes = figure.subplots(2, 3)
    for line, which in zip(axes, ("forward", "training"), strict=True):
        for axis, taps in zip(line, ("31", "7", "3"), strict=True):
            chosen = {"pass": which, "taps": taps, "convolution": "dynamic"}
            shown = [row for row in rows if chosen.items() <= row.items()]
            curves(axis, shown, "implementation", "ms", CONVOLUTIONS)
            for name in ("copy", "matrix product"):
                floor(axis, shown, name)
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.minorticks_off()
            axis.set_title(f"{which}, {taps} taps, ms", loc="left")
    _legend(figure)
    return figure


def whole_models() -> Figure:
    rows = read("whole_models.csv")
    figure = Figure(figsize=(9.5, 3.4))
    axes = figure.subplots(1, 3)
    tasks = ("language model training", "translator training", "translator decoding")
    for axis, task in zip(axes, tasks, strict=True):
        shown = [row for row in rows if row["task"] == task]
        if task == tasks[-1]:
            names = [model_of(row["model"]) for row in shown]
            speeds = [float(row["tokens/s"]) for row in shown]
            axis.bar(names, speeds, color=[MODELS[name]["color"] for name in names])
            axis.set_xticks(names, [name.replace(" ", "\n") for name in names])
        else:
            curves(axis, shown, "model", "tokens/s", MODELS)
            axis.set_ylim(bottom=0)
        axis.set_title(f"{task}, tokens/s", loc="left")
    _legend(figure)
    return figure


def short_convolutions() -> Figure:
    """Validation perplexity against updates, and against updates times seconds per update."""
    rows = read("short_convolution_time.csv")
    corpora = list(dict.fromkeys(row["corpus"] for row in rows))
    figure = Figure(figsize=(9.5, 3.2 * len(corpora)))
    panels = figure.subplots(len(corpora), 2, sharey="row", squeeze=False)
    for row in rows:
        updates, perplexities = zip(*_curve_of(row), strict=True)
        minutes = [count * float(row["seconds"]) / 60 for count in updates]
        system = row["system"].removesuffix(", feed-forward 296")
        axes = panels[corpora.index(row["corpus"])]
        for axis, xs in zip(axes, (updates, minutes), strict=True):
            axis.plot(xs, perplexities, label=system, **SYSTEMS[system])
    for corpus, axes in zip(corpora, panels, strict=True):
        for axis, against in zip(axes, ("updates", "training time, minutes"), strict=True):
            _perplexities(axis)
            axis.set_xlabel(against)
        axes[0].set_ylabel("validation perplexity")
        axes[0].set_title(corpus, loc="left")
    _legend(figure)
    return figure


def _curve_of(row: dict[str, str]) -> list[tuple[int, float]]:
    """The run's validation perplexities by updates; language models have no run of a recipe."""
    if row["results"]:
        run = DOCS / "data" / "results" / f"{row['results']}.json"
        return json.loads(run.read_text(encoding="utf-8"))["validation_perplexity"]
    points = read("short_convolution_curves.csv")
    return [
        (int(point["updates"]), float(point["validation perplexity"]))
        for point in points
        if point["system"] == row["system"]
    ]


def _perplexities(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()


def learning_curves() -> Figure:
    """Validation perplexity against updates, a panel for each corpus on which mixers compete."""
    figure = Figure(figsize=(12, 6.2))
    *axes, unused = figure.subplots(2, 3).flat
    unused.set_axis_off()
    for axis, (title, prefix) in zip(axes, CORPORA.items(), strict=True):
        for name, look in {**OURS, **SHORT, "pre-norm attention": PRE_NORM}.items():
            stem = f"{prefix}{name}"
            if look is PRE_NORM:
                stem = f"{prefix.removesuffix('best_')}prenorm_attention"
            run = DOCS / "data" / "results" / f"{stem}-seed1.json"
            if run.exists():
                curve = json.loads(run.read_text(encoding="utf-8"))["validation_perplexity"]
                updates, perplexities = zip(*curve, strict=True)
                axis.plot(updates, perplexities, label=name, **look)
        _perplexities(axis)
        _end_of_curves(axis)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_title(title, loc="left")
    _legend(figure)
    return figure


def _end_of_curves(axis: Axes) -> None:
    """Leave out the top, where all curves fall alike."""
    last = [line.get_ydata()[-1] for line in axis.lines]
    axis.set_ylim(0.95 * min(last), max(3 * min(last), 1.2 * max(last)))


def _legend(figure: Figure) -> None:
    """One for all panels."""
    handles = {
        label: handle
        for axis in figure.axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles))


PICTURES = (long_inputs, convolutions, whole_models, short_convolutions, learning_curves)


def digest(figure: Figure) -> str:
    """Of all texts, lines and bars; the same with every version of matplotlib.

    Where matplotlib chooses the ticks, their format stands for them.
    """
    panels = [
        {
            "titles": [axis.get_title(place) for place in ("left", "center", "right")],
            "labels": (axis.get_xlabel(), axis.get_ylabel()),
            "ticks": (_ticks(axis.xaxis), _ticks(axis.yaxis)),
            "notes": _words(axis.texts),
            "lines": [(line.get_label(), line.get_xydata().tolist()) for line in axis.lines],
            "bars": [bar.get_height() for bar in axis.patches],
        }
        for axis in figure.axes
    ]
    legends = [_words(legend.get_texts()) for legend in figure.findobj(Legend)]
    shown = [panels, legends, _words(figure.texts)]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def _ticks(axis: Axis) -> list[str]:
    locator = axis.get_major_locator()
    places = locator.locs if isinstance(locator, FixedLocator) else (0.5, 1000)
    return axis.get_major_formatter().format_ticks(places)


def _words(texts: Iterable[Text]) -> list[str]:
    return [text.get_text() for text in texts]


def main() -> None:
    with rc_context(STYLE):
        for draw in PICTURES:
            file = DOCS / f"{draw.__name__}.svg"
            figure = draw()
            description = f"SHA-256 of the data: {digest(figure)}"
            figure.savefig(file, metadata={"Date": None, "Description": description})
            print(f"written: {file.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
