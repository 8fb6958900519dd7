"""Text and tables as Markdown."""

from collections.abc import Sequence
from typing import NamedTuple

from .spelling import printable

MISSING = "\u2013"
"""Shown for a missing figure."""


class Table(NamedTuple):
    """Columns and rows of text.

    Attributes:
        numeric: the columns that hold numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[str]


def table(content: Table) -> str:
    """A table whose heads and cells are plain text."""
    columns, rows = list(map(text, content.columns)), [list(map(text, x)) for x in content.rows]
    return raw_table(Table(columns, rows, list(map(text, content.numeric))))


def raw_table(content: Table) -> str:
    """A table whose heads and cells are Markdown."""
    rules = ["---:" if name in content.numeric else "---" for name in content.columns]
    lines = (content.columns, rules, *content.rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(content: str) -> str:
    """As inline code."""
    return f"`{printable(' '.join(content.replace('`', ' ').split()))}`"


def text(content: str) -> str:
    """Escape Markdown and what a terminal would obey."""
    for sign in "\\`*|<>":
        content = content.replace(sign, f"\\{sign}")
    return printable(" ".join(content.replace("](", "]\\(").split()))
