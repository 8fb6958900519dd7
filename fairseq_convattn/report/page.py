"""The page: one file, nothing of which comes from elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from . import tables
from .charts import COLOURS, learning_curves
from .runs import Run
from .samples import samples
from .systems import Section

_HERE = Path(__file__).parent
_SHOWN_ELSEWHERE = ("command", "stages", "scores", "environment")


def page(sections: Sequence[Section], count: int) -> str:
    """The HTML of sections, with ``count`` sample outputs in each."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
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
        commands=commands,
        facts=facts,
    )
    return f"{text.strip()}\n"


def commands(run: Run) -> str:
    """What was run, as a script."""
    lines = [run.content.get("command", "")]
    for name, record in run.stages.items():
        lines += ["", f"# {name}", *record["commands"]]
    return "\n".join(lines).strip()


def facts(run: Run) -> str:
    """What else is known of how a run was made, as JSON."""
    known: dict[str, Any] = {"folder": str(run.folder)}
    known |= {name: x for name, x in run.content.items() if name not in _SHOWN_ELSEWHERE}
    measured = ("begun", "finished", "seconds", "environment")
    known["stages"] = {
        stage: {name: record.get(name) for name in measured} for stage, record in run.stages.items()
    }
    return json.dumps(known, indent=1, ensure_ascii=False)
