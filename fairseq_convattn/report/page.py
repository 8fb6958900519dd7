"""The page: one file, nothing of which comes from elsewhere."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from . import tables
from .charts import COLOURS, Line, chart, mean_curve
from .runs import Run
from .samples import samples
from .significance import EXPLANATION
from .systems import Section, System
from .train_log import Point

_HERE = Path(__file__).parent
_LEGEND = 5  # lines at most
_LONG = 320  # characters of a text that are shown at once
_FACTS = ("command", "origin", "reading", "unconfirmed", "batch")
_FACTS_OF_STAGE = ("begun", "finished", "seconds", "commands")


class Curves(NamedTuple):
    """Learning curves of a few systems.

    Attributes:
        legend: what is drawn, by label.
        charts: titles with SVG, or with None where there are no points.
        note: what thin and grey lines are.
    """

    legend: Sequence[tuple[str, Line]]
    charts: Sequence[tuple[str, str | None]]
    note: str


def page(sections: Sequence[Section], count: int) -> str:
    """The HTML of sections, with ``count`` sample outputs in each."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cut": cut, "words": words}
    environment.globals |= {
        "tables": tables,
        "curves": curves,
        "samples": lambda section: samples(section, count),
        "details": details,
    }
    titles = list(dict.fromkeys(section.title for section in sections))
    text = environment.get_template("page.html").render(
        heading=titles[0] if len(titles) == 1 else f"{len(titles)} recipes",
        sections=sections,
        colours=COLOURS,
        explanation=EXPLANATION,
        version=__version__,
    )
    return f"{text.strip()}\n"


def curves(section: Section) -> Iterator[Curves]:
    """Training loss and validation perplexity, of as many systems at once as a legend takes;
    the others are in the background."""
    systems = section.systems
    loss = _lines(systems, lambda run: run.log.loss)
    perplexity = _lines(systems, lambda run: run.log.perplexity)
    others = "; grey lines are the other systems" if len(systems) > _LEGEND else ""
    for first in range(0, len(systems), _LEGEND):
        places = range(len(systems))[first : first + _LEGEND]
        chosen = [[lines[i] for i in places] for lines in (loss, perplexity)]
        several = any(line.has_seeds for lines in chosen for line in lines)
        yield Curves(
            [(systems[i].label, loss[i] if loss[i].points else perplexity[i]) for i in places],
            [
                ("Training loss", chart(chosen[0], loss, "loss (base 2)")),
                ("Validation perplexity", chart(chosen[1], perplexity, "perplexity", True)),
            ],
            ("; thin lines are single seeds" if several else "") + others,
        )


def _lines(systems: Sequence[System], points: Callable[[Run], Sequence[Point]]) -> list[Line]:
    """The curves of systems, of which those of one mixer differ in their dashes."""
    before: Counter[str] = Counter()
    lines = []
    for system in systems:
        colour = system.mixer if system.mixer in COLOURS else "other"
        seeds = [found for found in map(points, system.runs) if found]
        lines.append(Line(colour, before[colour], mean_curve(seeds), seeds))
        before[colour] += 1
    return lines


def cut(text: str) -> tuple[str, str]:
    """What of a text is shown at once, and the rest."""
    if len(text) <= _LONG:
        return text, ""
    end = text.rfind(" ", 0, _LONG)
    end = end if end > 0 else _LONG
    return text[:end], text[end:]


def details(run: Run) -> list[tuple[str, Mapping[str, Any]]]:
    """How a run was made: headings with facts, the run's own and those of every stage, which
    have their environments where these differ."""
    environments = [record.get("environment") for record in run.stages.values()]
    alike = all(environment == environments[0] for environment in environments)
    facts = {"folder": run.folder}
    facts |= {name: run.content[name] for name in _FACTS if name in run.content}
    facts |= (environments[0] if environments and alike else None) or {}
    found = [("", facts)]
    for name, record in run.stages.items():
        own = {} if alike else record.get("environment") or {}
        found.append((name, {fact: record.get(fact) for fact in _FACTS_OF_STAGE} | own))
    data = run.content.get("data")
    return [*found, ("SHA-256 of the data", data)] if data else found


def words(value: Any) -> str:
    """A value of JSON in words; of numbers of seconds and of tokens the digits in groups."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {words(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(words, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)
