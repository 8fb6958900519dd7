"""The page: one file, nothing of which comes from elsewhere."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

_HERE = Path(__file__).parent
_LEGEND = 5  # lines at most
_LONG = 320  # characters of a text that are shown at once


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
    environment.filters["cut"] = cut
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
            [(systems[i].label, loss[i]) for i in places],
            [
                ("Training loss", chart(chosen[0], loss, "loss (base 2)")),
                ("Validation perplexity", chart(chosen[1], perplexity, "perplexity", True)),
            ],
            ("; thin lines are single seeds" if several else "") + others,
        )


def _lines(systems: Sequence[System], points) -> list[Line]:
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


def details(run: Run) -> list[tuple[str, Mapping[str, str | None], Sequence[str]]]:
    """How a run was made: headings, facts and commands."""
    content, batch = run.content, run.content.get("batch")
    facts = {
        "folder": str(run.folder),
        "command": content.get("command"),
        "hyper-parameters": content.get("origin"),
        "our reading": content.get("reading"),
        "batch": f"{batch['per_update']:,} {batch['unit']} an update" if batch else None,
    }
    environments = [record.get("environment") or {} for record in run.stages.values()]
    alike = all(environment == environments[0] for environment in environments)
    found = [("", facts | (_environment(environments[0]) if environments and alike else {}), ())]
    for (name, record), environment in zip(run.stages.items(), environments, strict=True):
        own = {} if alike else _environment(environment)
        found.append((name, _times(record) | own, record.get("commands", ())))
    data = content.get("data")
    return [*found, ("SHA-256 of the data", data, ())] if data else found


def _times(record: Mapping[str, Any]) -> dict[str, str | None]:
    seconds = record.get("seconds")
    return {
        "begun": record.get("begun"),
        "finished": record.get("finished"),
        "took": None if seconds is None else f"{seconds:,.1f} s",
    }


def _environment(environment: Mapping[str, Any]) -> dict[str, str | None]:
    git = environment.get("git")
    gpus = ", ".join(environment.get("gpus") or ())
    return {
        "versions": _pairs(environment.get("versions")),
        "commit": f"{git['commit']}{', with changes' if git['changed'] else ''}" if git else None,
        "machine": gpus or environment.get("processor"),
        "platform": environment.get("platform"),
        "variables": _pairs(environment.get("variables")),
    }


def _pairs(mapping: Mapping[str, Any] | None) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in (mapping or {}).items()) or None
