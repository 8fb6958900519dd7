"""The page: one self-contained HTML file."""

import json
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from . import tables
from .charts import COLOURS, learning_curves
from .runs import Run
from .systems import Section

_SUBSET = "test"
_SHOWN_ELSEWHERE = ("command", "stages", "scores")


def page(sections: Sequence[Section], count: int) -> str:
    """The HTML of sections, with ``count`` sample outputs in each."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    titles = list(dict.fromkeys(section.title for section in sections))
    text = environment.get_template("page.html").render(
        heading=titles[0] if len(titles) == 1 else f"{len(titles)} recipes",
        sections=sections,
        colours=COLOURS,
        version=__version__,
        tables=tables,
        learning_curves=learning_curves,
        samples=lambda section: samples(section, count),
        facts=facts,
    )
    return f"{text.strip()}\n"


def samples(section: Section, count: int) -> dict[int, list[tuple[str, str | None]]]:
    """Sentences spread over the first test set, with the output of each system's first run that has
    any. Outputs for other sources are left out.

    Returns:
        By place in the test set, from 1 on: source, reference and outputs, each with its name;
        None where there is none.
    """
    written = {
        system.label: next(
            (x.generated[_SUBSET] for x in system.runs if _SUBSET in x.generated), None
        )
        for system in section.systems
    }
    first = next(filter(None, written.values()), None)
    if first is None:
        return {}
    columns = {"source": first.sources, "reference": first.targets}
    for label, texts in written.items():
        columns[label] = texts.detokenised if texts and texts.sources == first.sources else None
    total = len(first.detokenised)
    count = min(count, total)
    places = [(2 * i + 1) * total // (2 * count) for i in range(count)]
    return {
        place + 1: [(name, lines and lines[place]) for name, lines in columns.items()]
        for place in places
    }


def facts(run: Run) -> str:
    """Further details of a run, as JSON."""
    known = {name: x for name, x in run.content.items() if name not in _SHOWN_ELSEWHERE}
    known |= {"folder": str(run.folder), "environment": run.environment}
    return json.dumps(known, indent=1, ensure_ascii=False)
