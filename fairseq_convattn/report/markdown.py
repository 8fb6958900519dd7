"""The tables as Markdown."""

from collections.abc import Sequence

from .significance import EXPLANATION
from .systems import Section
from .tables import (
    Table,
    cost_table,
    score_notes,
    score_table,
    significance_signatures,
    significance_table,
    warnings,
)


def markdown(sections: Sequence[Section]) -> str:
    """Scores, their differences and costs of every recipe."""
    parts = []
    for section in sections:
        parts.append(f"## {_text(section.title)}")
        parts += warnings(section)
        parts.append(_table(score_table(section)))
        notes = [
            f"- {_text(note.score)}: {_code(note.signature)}; published: {_text(note.published)}"
            for note in score_notes(section)
        ]
        parts += ["\n".join(notes)] if notes else []
        if significance := significance_table(section):
            parts += [_table(significance), EXPLANATION]
            parts += [f"- {_code(text)}" for text in significance_signatures(section)]
        parts.append(_table(cost_table(section)))
    return "\n\n".join(parts)


def _table(table: Table) -> str:
    rules = ["---:" if name in table.numeric else "---" for name in table.columns]
    return "\n".join(
        f"| {' | '.join(map(_text, cells))} |" for cells in (table.columns, rules, *table.rows)
    )


def _code(text: str) -> str:
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def _text(text: str) -> str:
    """As it is, whatever it has that Markdown or HTML would take for its own."""
    for sign in "\\`*|<>":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
