"""Plot of conv_ops.py's results: time against the length of sentences."""

from collections.abc import Collection
from pathlib import Path


def plot(rows: list[dict], file: Path, ours: Collection[str], floors: Collection[str]) -> None:
    """Draw a panel per pass, convolution and kernel size, for the fewest threads."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    fewest = min(row["threads"] for row in rows)
    rows = [row for row in rows if row["threads"] == fewest]
    panels = list(dict.fromkeys((r["convolution"], r["kernel_size"]) for r in rows))
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    size = 4.2 * len(panels), 3.6 * len(passes)
    names = dict.fromkeys(row["implementation"] for row in rows)
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    figure, axes = pyplot.subplots(
        len(passes), len(panels), figsize=size, squeeze=False, layout="constrained"
    )
    for line, which in zip(axes, passes, strict=True):
        for axis, panel in zip(line, panels, strict=True):
            mine = [
                r
                for r in rows
                if (r["pass"], r["convolution"], r["kernel_size"]) == (which, *panel)
            ]
            for name in dict.fromkeys(row["implementation"] for row in mine):
                points = [
                    (r["tokens"], r["milliseconds"]) for r in mine if r["implementation"] == name
                ]
                style = "-o" if name in ours else ":." if name in floors else "--s"
                axis.plot(
                    *zip(*sorted(points), strict=True),
                    style,
                    label=name,
                    color=colours[name],
                    markersize=4,
                )
            title = f"{which}: {panel[0]}, {panel[1]} taps, {fewest} thread{'s' * (fewest > 1)}"
            axis.set(title=title, xlabel="tokens", ylabel="ms", xscale="log", yscale="log")
            ticks = sorted({row["tokens"] for row in mine})
            axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
    drawn = (axis.get_legend_handles_labels() for axis in axes.flat)
    legend = {label: line for shown in drawn for line, label in zip(*shown, strict=True)}
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=len(legend))
    figure.savefig(file)
