"""The tables as Markdown."""

from collections.abc import Sequence

from .significance import EXPLANATION
from .systems import Section
from .tables import (
    Table,
    cost_table,
    score_table,
    signatures,
    significance_signatures,
    significance_table,
    warnings,
)


def markdown(sections: Sequence[Section]) -> str:
    """Scores, their differences and costs of every recipe."""
    parts = []
    for section in sections:
        parts += [f"## {text(section.title)}", *warnings(section), table(score_table(section))]
        notes = [f"- {text(name)}: {code(signature)}" for name, signature in signatures(section)]
        parts += ["\n".join(notes)] if notes else []
        if significance := significance_table(section):
            parts += [table(significance), EXPLANATION]
            parts += [f"- {code(signature)}" for signature in significance_signatures(section)]
        parts.append(table(cost_table(section)))
    return "\n\n".join(parts)


def table(content: Table) -> str:
    """A table whose cells are plain text."""
    return raw_table(content._replace(rows=[list(map(text, row)) for row in content.rows]))


def raw_table(content: Table) -> str:
    """A table whose cells are Markdown."""
    rules = ["---:" if name in content.numeric else "---" for name in content.columns]
    heads = list(map(text, content.columns))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *content.rows))


def code(content: str) -> str:
    """As it is typed; in a table too, where a bar ends a cell elsewhere."""
    return f"`{' '.join(content.replace('`', ' ').split())}`"


def text(content: str) -> str:
    """As it is, whatever it has that Markdown or HTML would take for its own."""
    for sign in "\\`*|<>":
        content = content.replace(sign, f"\\{sign}")
    return " ".join(content.split())
