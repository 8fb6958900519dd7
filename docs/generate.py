#!/usr/bin/env python
"""Write what the documents quote from elsewhere: the page of options and the tables of figures.

    python docs/generate.py           # rewrite docs/options.md and the tables of all documents
    python docs/generate.py --check   # change nothing; exit with 1 where a file is out of date

A table follows a comment that names its data, and is replaced:

    <!-- table data/long.csv rows=tokens columns=model value=ms unit=", ms" where=task:training -->
    <!-- table data/multi30k.csv columns=architecture,parameters -->

The first form spreads ``value`` over the values of ``columns``, whose heads get the ``unit``; the
second prints columns as they are, all of them where none is named. ``where`` keeps the rows with
COLUMN:VALUE, several separated by commas. The file is relative to the document.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = ROOT / "docs" / "options.md"
TABLE = re.compile(r"(<!-- table (\S+)([^\n]*) -->\n)(?:\|[^\n]*\n)*")
TASKS = {
    "translation": "Translation and summarization",
    "language_modeling": "Language models",
    "masked_lm": "Masked language models",
}


def documents() -> list[Path]:
    """Every Markdown file of the repository that a user reads."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def with_tables(document: Path) -> str:
    """The text of ``document`` with its tables made anew."""

    def table(match: re.Match) -> str:
        comment, file, words = match.groups()
        settings = dict(word.split("=", 1) for word in shlex.split(words))
        with open(document.parent / file, encoding="utf-8", newline="") as rows:
            return comment + markdown_table(list(csv.DictReader(rows)), **settings) + "\n"

    return TABLE.sub(table, document.read_text(encoding="utf-8"))


def markdown_table(
    lines: list[dict[str, str]],
    *,
    rows: str = "",
    columns: str = "",
    value: str = "",
    unit: str = "",
    where: str = "",
) -> str:
    """The ``lines`` of a CSV file as a Markdown table; the settings are those of the comment.

    Raises:
        ValueError: no line is left.
    """
    for condition in _names(where):
        name, wanted = condition.split(":")
        lines = [line for line in lines if line[name] == wanted]
    if not lines:
        raise ValueError(f"no line with {where}")
    if not value:
        header = _names(columns) or list(lines[0])
        cells = [[line[name] for name in header] for line in lines]
    else:
        keys = _names(rows)
        heads = list(dict.fromkeys(line[columns] for line in lines))
        spread: dict[tuple[str, ...], dict[str, str]] = {}
        for line in lines:
            spread.setdefault(tuple(line[key] for key in keys), {})[line[columns]] = line[value]
        header = [*keys, *(head + unit for head in heads)]
        cells = [[*key, *(line.get(h, "") for h in heads)] for key, line in spread.items()]
    return _as_table(header, [[_figure(cell) for cell in row] for row in cells])


def _as_table(header: list[str], cells: list[list[str]]) -> str:
    """Markdown; columns of figures are right-aligned."""
    columns = zip(*cells, strict=True)
    rule = ["---:" if all(c[:1].isdigit() for c in column if c) else "---" for column in columns]
    return "\n".join(
        f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [header, rule, *cells]
    )


def _figure(cell: str) -> str:
    """Whole numbers with their thousands apart."""
    return f"{int(cell):,}" if cell.isdecimal() else cell


def _names(text: str) -> list[str]:
    return text.split(",") if text else []


def options_page() -> str:
    """docs/options.md: what ``convattn architectures --task TASK`` prints, as Markdown."""
    sections = [
        "# Options\n\n"
        "The architectures and options that the plugin adds to `fairseq-train`, by task. "
        "`fairseq-train --help` stops before the\n"
        "options of a model; `convattn architectures --task TASK` prints them.\n\n"
        "Invalid options fail at once, with a one-line message: a list of the wrong length, an "
        "unknown mixer,\nheads that do not divide the width, an even kernel in an encoder.\n\n"
        "This page is made by `python docs/generate.py`."
    ]
    for title, text in zip(TASKS.values(), _help_texts(), strict=True):
        options, _, architectures = text.partition("\nArchitectures: ")
        names, _, table = architectures.strip().partition("\n\n")
        names = names.replace("given above", "given below").rstrip(":")
        sections += [f"## {title}", f"Architectures: {names}.", *_size_tables(table)]
        sections += _option_list(options)
    return "\n\n".join(sections) + "\n"


def _size_tables(table: str) -> list[str]:
    """The table of architectures as two, of shapes and of parameters, with one figure a cell."""
    table = table.replace("weight / input", "weight dropout / input dropout")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    heads, _, *cells = rows
    parameters = heads.pop().removeprefix("million parameters: ").split(" / ")
    counts = [[row[0], *row.pop().split(" / ")] for row in cells]
    shapes = [[part for cell in row for part in cell.split(" / ")] for row in [heads, *cells]]
    return [
        _as_table(shapes[0], shapes[1:]),
        "Million parameters:",
        _as_table([heads[0], *parameters], counts),
    ]


def _help_texts() -> list[str]:
    """The help text of every task, each of its paragraphs on one line."""
    code = (
        "import runpy, sys\n"
        "for task in sys.argv[2:]:\n"
        "    sys.argv[1:] = ['--task', task]\n"
        "    runpy.run_module('fairseq_convattn', run_name='__main__', alter_sys=True)\n"
        "    print('\\f')\n"
    )
    texts = subprocess.run(
        [sys.executable, "-c", code, "", *TASKS],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100000", "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return texts.split("\f\n")[: len(TASKS)]


def _option_list(text: str) -> list[str]:
    """Every option of argparse's help as an item of a Markdown list."""
    items: list[str] = []
    for line in text.splitlines():
        option = re.match(r"  (-\S.*?)(?:\s{2,}(\S.*))?$", line)
        if option:
            name, _, choices = option[1].partition(" {")
            name = name.split(" ")[0]
            values = f" one of {_code(choices.rstrip('}'))};" if choices else ""
            items.append(f"- `{name}`:{values} {_escaped(option[2] or '')}".rstrip(" :;"))
        elif items and line.startswith("   "):
            items[-1] = f"{items[-1]}: ".replace(";: ", "; ") + _escaped(line.strip())
    return ["\n".join(items)]


def _code(choices: str) -> str:
    return ", ".join(f"`{choice}`" for choice in choices.split(","))


def _escaped(text: str) -> str:
    """Text that Markdown prints as it is."""
    return re.sub(r"([*_<>|\[\]])", r"\\\1", text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    options = options_page()  # takes a while, in which somebody may edit the others
    texts = {document: with_tables(document) for document in documents() if document != OPTIONS}
    for document, text in {**texts, OPTIONS: options}.items():
        if document.exists() and document.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(document.relative_to(ROOT)))
        if not check:
            document.write_text(text, encoding="utf-8")
    if check and stale:
        sys.exit(f"out of date: {', '.join(stale)} (run python docs/generate.py)")
    print(f"written: {', '.join(stale)}" if stale else "up to date")


if __name__ == "__main__":
    main()
