"""Curves as SVG whose colours are those of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .train_log import Point

COLOURS = 6
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2")
_WIDTH, _HEIGHT = 440, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 46
_MOST_POINTS = 300


@dataclass(frozen=True)
class Line:
    """One system's curve.

    Attributes:
        points: what is drawn boldly, a mean over seeds.
        seeds: each of them, drawn faintly where there are several.
    """

    label: str
    points: Sequence[Point]
    seeds: Sequence[Sequence[Point]] = ()


def mean_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean at the updates that all curves have."""
    known = [dict(curve) for curve in curves if curve]
    if not known:
        return []
    common = sorted(set.intersection(*(set(curve) for curve in known)))
    return [(x, sum(curve[x] for curve in known) / len(known)) for x in common]


def style(index: int) -> str:
    """The attributes of the line of the system at ``index``."""
    dash = _DASHES[(index + index // COLOURS) % len(_DASHES)]
    return f'class="line c{index % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def chart(lines: Sequence[Line], title: str, label: str, logarithmic: bool = False) -> str:
    """An SVG of curves against updates; empty if there are no points.

    Args:
        label: what the vertical axis has.
        logarithmic: whether it is; for values above 0.
    """
    drawn = [points for line in lines for points in (line.points, *line.seeds) if points]
    if not drawn:
        return ""
    last = max(points[-1][0] for points in drawn)
    values = [value for points in drawn for _, value in points]
    ticks = log_ticks(min(values), max(values)) if logarithmic else linear_ticks(values)
    low, high = _limits(values, ticks, logarithmic)
    axis = _Axes(last, low, high, logarithmic)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        *(axis.horizontal(tick) for tick in ticks if low <= tick <= high),
        *(axis.vertical(t) for t in linear_ticks([0, last]) if t <= last and t == int(t)),
        f'<path class="frame" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>',
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:g}" y="{_HEIGHT - 8}" '
        'text-anchor="middle">updates</text>',
        f'<text transform="translate(13 {(_TOP + _HEIGHT - _BOTTOM) / 2:g}) rotate(-90)" '
        f'text-anchor="middle">{escape(label)}</text>',
    ]
    for index, line in enumerate(lines):
        for seed in line.seeds if len(line.seeds) > 1 else ():
            parts.append(axis.curve(seed, f'class="seed c{index % COLOURS}"'))
        parts.append(axis.curve(line.points, style(index)))
    return "".join((*parts, "</svg>"))


def swatch(index: int) -> str:
    """The line of a system, for the legend."""
    return (
        '<svg class="swatch" viewBox="0 0 36 10" aria-hidden="true">'
        f'<path {style(index)} d="M1 5H35"/></svg>'
    )


def linear_ticks(values: Sequence[float]) -> list[float]:
    """About five round numbers from the least value to the greatest, and around."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (factor * step) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 10) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten around the range, powers alone if it is wide."""
    digits = (1,) if high / low > 1000 else (1, 2, 5)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
    first = max((i for i, tick in enumerate(ticks) if tick <= low), default=0)
    last = min((i for i, tick in enumerate(ticks) if tick >= high), default=len(ticks) - 1)
    return ticks[first : last + 1]


def _limits(
    values: Sequence[float], ticks: Sequence[float], logarithmic: bool
) -> tuple[float, float]:
    """Round, and apart."""
    low, high = min(*ticks, *values), max(*ticks, *values)
    if low < high:
        return low, high
    return (low / 2, high * 2) if logarithmic else (low - 1, high + 1)


@dataclass(frozen=True)
class _Axes:
    last: float
    low: float
    high: float
    logarithmic: bool

    def x(self, updates: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * updates / self.last

    def y(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    def horizontal(self, tick: float) -> str:
        y = self.y(tick)
        return (
            f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        )

    def vertical(self, tick: float) -> str:
        x, foot = self.x(tick), _HEIGHT - _BOTTOM
        return (
            f'<path class="frame" d="M{x:.1f} {foot}v4"/>'
            f'<text x="{x:.1f}" y="{foot + 18}" text-anchor="middle">{tick:,.0f}</text>'
        )

    def curve(self, points: Sequence[Point], attributes: str) -> str:
        points = _thinned(points)
        path = "L".join(f"{self.x(u):.1f} {self.y(value):.1f}" for u, value in points)
        if not path:
            return ""
        dot = "h0.01" if len(points) == 1 else ""
        return f'<path {attributes} d="M{path}{dot}"/>'


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Means of neighbours where there are more than a page can show."""
    size = math.ceil(len(points) / _MOST_POINTS)
    if size <= 1:
        return points
    groups = (points[i : i + size] for i in range(0, len(points), size))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
