#!/usr/bin/env python
"""Write what the documents quote from elsewhere: the page of options and the tables of figures.

    python docs/generate.py           # rewrite docs/options.md and the tables of all documents
    python docs/generate.py --check   # change nothing; exit with 1 where a file is out of date

A table follows a comment that names its data, and is replaced:

    <!-- table data/long.csv rows=tokens columns=model value=ms unit=", ms" where=task:training -->
    <!-- table data/whole_models.csv columns=model,tokens/s -->

The first form spreads ``value`` over the values of ``columns``, whose heads get the ``unit``, and
with ``mean=yes`` adds the rows' means and standard deviations; the second prints columns as they
are, all of them where none is named. ``where`` keeps the rows with COLUMN:VALUE, several
separated by commas. The file is relative to the document. A row whose column ``results`` names a
run has figures of docs/data/results/NAME.json: ``parameters``, ``updates``, ``validation
perplexity`` (after the last update) and the scores by their names. They fill columns of their
names, which the row leaves empty, and replace ``{NAME}`` in other columns, where the row has no
figure of its own. Of several runs, separated by spaces, these are the means; where
``baseline results`` names a run, they are the differences from its figures. Between the comments
``results: begin`` and ``results: end`` stand the tables of all runs, `convattn report --table`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import shlex
import statistics
import sys
from collections.abc import Iterable
from enum import Enum
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fairseq.dataclass.utils import interpret_dc_type  # noqa: E402

from fairseq_convattn.architectures.config import (  # noqa: E402
    ENCODER_DECODER,
    MASKED_LANGUAGE_MODEL,
)
from fairseq_convattn.architectures.options import (  # noqa: E402
    MASKED_LANGUAGE_MODEL_OPTIONS,
    mixer_options,
)
from fairseq_convattn.architectures.overview import (  # noqa: E402
    FAMILIES,
    PIECES,
    VOCABULARY,
    Family,
    table_of_shapes,
    table_of_sizes,
)
from fairseq_convattn.architectures.presets import ARCHITECTURE_NAMES  # noqa: E402
from fairseq_convattn.markdown import Table, raw_table  # noqa: E402
from fairseq_convattn.mixers import MIXERS  # noqa: E402
from fairseq_convattn.mixers.options import Option  # noqa: E402
from fairseq_convattn.report.collected import results_table  # noqa: E402
from fairseq_convattn.summarization.options import own_options  # noqa: E402

OPTIONS = ROOT / "docs" / "options.md"
TABLE = re.compile(r"(<!-- table (\S+)([^\n]*) -->\n)(?:\|[^\n]*\n)*")
REFERENCE = re.compile(r"\{([^{}]*)\}")
TYPED = re.compile(r"^\d|\d\.\d")


class Task(NamedTuple):
    """A section of the page of options.

    Attributes:
        title: its heading.
        model: the base model.
        vocabulary: what the counts of parameters assume.
    """

    title: str
    model: str
    vocabulary: str


TASKS = (
    Task(
        "Translation and summarization",
        "convattn",
        f"with a shared vocabulary of {VOCABULARY:,} (the model of\n"
        "[CNN/DailyMail](summarization.md#cnndailymail) has three vocabularies, those of the\n"
        "recipes of IWSLT14 and WMT17 have two)",
    ),
    Task(
        "Language models",
        "convattn_lm",
        "with the vocabulary of the table above",
    ),
    Task(
        "Masked language models",
        "convattn_mlm",
        f"with a vocabulary of {PIECES:,} and 512 positions",
    ),
)


MIXER_OPTIONS = {  # by the first mixer that reads them
    "Layers": "",
    "Convolutions": "lightweight",
    "Composite attention and TISA": "composite",
    "Short convolutions": "attention",
}


def documents() -> list[Path]:
    """Every Markdown file of the repository that a user reads."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def with_tables(document: Path) -> str:
    """The text of ``document`` with its tables made anew."""

    def table(match: re.Match) -> str:
        comment, file, words = match.groups()
        settings = dict(word.split("=", 1) for word in shlex.split(words))
        lines = read_table(document.parent / file)
        try:
            return comment + markdown_table(lines, **settings) + "\n"
        except KeyError as error:
            sys.exit(f"error: {document.name}: {file} has no column {error}")
        except (TypeError, ValueError) as error:
            sys.exit(f"error: {document.name}: {file}: {error}")

    text = TABLE.sub(table, document.read_text(encoding="utf-8"))
    begin, end = "<!-- results: begin -->\n", "<!-- results: end -->\n"
    if begin in text:
        before, between = text.split(begin)
        made = results_table(sorted((ROOT / "docs/data/results").glob("*.json")))
        text = f"{before}{begin}{made.strip()}\n{end}{between.split(end)[1]}"
    return text


def read_table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, with the figures of the runs that they name."""
    with open(file, encoding="utf-8", newline="") as rows:
        lines = list(csv.DictReader(rows))
    if any(None in line or None in line.values() for line in lines):
        sys.exit(f"error: {file.name} has rows with more or fewer columns than its head")
    quoting = {name for line in lines for name, cell in line.items() if REFERENCE.search(cell)}
    made = []
    for number, line in enumerate(lines, 2):
        try:
            made.append(_with_results(line, quoting))
        except ValueError as error:
            sys.exit(f"error: {file.name}, line {number}: {error}")
    return made


def _with_results(line: dict[str, str], quoting: set[str]) -> dict[str, str]:
    """``line`` with its runs' figures; ``quoting`` are the columns that have references."""
    figures, runs = _figures_of_row(line), line.get("results")

    def figure(match: re.Match) -> str:
        if match[1] in figures:
            return figures[match[1]]
        known = f"{runs} has {', '.join(figures)}" if runs else "results names no run"
        raise ValueError(f"{match[0]} is unknown, {known}")

    typed = [
        column
        for column, cell in line.items()
        if (cell and column in figures)
        or (column in quoting and TYPED.search(REFERENCE.sub("", cell)))
    ]
    if runs and typed:
        raise ValueError(f"{typed[0]} has a figure, and {runs} has it, too")
    return {column: REFERENCE.sub(figure, cell) for column, cell in line.items()} | figures


def _figures_of_row(line: dict[str, str]) -> dict[str, str]:
    names = line.get("results", "").split()
    if not names:
        return {}
    baseline = line.get("baseline results")
    runs = {name: _figures_of_run(name) for name in (*names, baseline) if name}
    for (one, its), (other, others) in pairwise(runs.items()):
        if differing := sorted(its.keys() ^ others.keys()):
            raise ValueError(f"only one of {one} and {other} has {differing[0]}")
    found = {name: statistics.mean(runs[run][name] for run in names) for name in runs[names[0]]}
    if baseline:
        found = {name: figure - runs[baseline][name] for name, figure in found.items()}
    return {name: str(x) if isinstance(x, int) else f"{x:.2f}" for name, x in found.items()}


def _figures_of_run(name: str) -> dict[str, int | float]:
    file = ROOT / "docs" / "data" / "results" / f"{name}.json"
    if not file.exists():
        raise ValueError(f"docs/data/results has no run {name}")
    run = json.loads(file.read_text(encoding="utf-8"))
    return {
        **{count: run[count] for count in ("parameters", "updates")},
        "validation perplexity": run["validation_perplexity"][-1][1],
        **{score["name"]: score["score"] for score in run["scores"]},
    }


def markdown_table(
    lines: list[dict[str, str]],
    *,
    rows: str = "",
    columns: str = "",
    value: str = "",
    unit: str = "",
    mean: str = "",
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
        if mean == "yes":
            header += ["mean", "standard deviation"]
            cells = [[*row, *_moments(row[len(keys) :])] for row in cells]
    return _as_table(header, [[_figure(cell) for cell in row] for row in cells])


def _moments(cells: Iterable[str]) -> tuple[str, str]:
    """Mean and standard deviation of the figures of a row."""
    figures = [float(cell) for cell in cells if cell]
    spread = f"{statistics.stdev(figures):.2f}" if len(figures) > 1 else ""
    return f"{statistics.mean(figures):.2f}", spread


def _as_table(header: list[str], cells: list[list[str]]) -> str:
    """Markdown; columns of figures are right-aligned."""
    columns = zip(header, *cells, strict=True)
    numeric = [head for head, *column in columns if all(c[:1].isdigit() for c in column if c)]
    return raw_table(Table(header, cells, numeric)).replace("|  |", "| |")


def _figure(cell: str) -> str:
    """Whole numbers with their thousands apart."""
    return f"{int(cell):,}" if cell.isdecimal() else cell


def _names(text: str) -> list[str]:
    """The words of a setting, in which quotes may enclose a comma."""
    return next(csv.reader([text]), [])


def options_page() -> str:
    """docs/options.md: the architectures and the options of every task, from the code."""
    sections = [
        "# Options\n\n"
        "<!-- written by docs/generate.py -->\n\n"
        "The architectures and options that the plugin adds to `fairseq-train`, whose `--help` "
        "omits them.\n`convattn architectures --task TASK` prints them, with every option of "
        "fairseq's models.\n\n"
        "- An architecture sets shapes and dropouts. The command line overrides it.\n"
        "- Language models are pre-norm, those of `lm_X` without a norm after the last layer. All "
        "other models are post-norm; `--encoder-normalize-before` and `--decoder-normalize-before` "
        "make them pre-norm.\n"
        "- Invalid values fail at once; the last line says why. fairseq-train's usage precedes it "
        "if a value has the wrong type or is none of the choices.\n"
        "- `--optimizer convattn_adam` and `convattn_nag` are fairseq's `adam` and `nag`, and save "
        "more, so that trainings [resume bit for bit](reliability.md#resume-bit-for-bit).\n"
        "- Options of training are in [fairseq's documentation]"
        "(https://fairseq.readthedocs.io/en/latest/command_line_tools.html#fairseq-train).",
        "## Mixer options, all tasks",
        "Language models have only a decoder, masked language models only an encoder. The latter\n"
        "are initialised like RoBERTa: for them `--initialization xavier` is an error.",
    ]
    options = mixer_options(("encoder", "decoder"))
    for title, reader in MIXER_OPTIONS.items():
        own = ((name, each) for name, each in options.items() if _first_reader(each) == reader)
        listed = ((name, each.text(), each.kind.annotation) for name, each in own)
        sections += [f"### {title}", _option_list(listed)]
    for task in TASKS:
        sections += _task_sections(task)
    return "\n\n".join(sections) + "\n"


def _first_reader(option: Option) -> str:
    """The first of the mixers that read an option; empty if all do."""
    return "" if option.readers in ((), tuple(MIXERS)) else option.readers[0]


def _task_sections(task: Task) -> list[str]:
    """What a task has: shapes, parameters, and the options that its architectures set."""
    family = FAMILIES[task.model]
    patterns = ", ".join(f"`{name.format('X')}`" for name in ARCHITECTURE_NAMES.values())
    sections = [
        f"## {task.title}",
        f"Architectures: {patterns}. `--arch {task.model}` has the defaults below.",
        _table_of_rows(table_of_shapes(family)),
        f"Million parameters, {task.vocabulary}:",
        _table_of_rows(table_of_sizes(family)),
        "Options that architectures set, or whose default is not fairseq's:",
        _option_list(_own_or_set(family)),
    ]
    if family.schema is ENCODER_DECODER:
        sections += [
            "`--task summarization` also has:",
            _option_list((x.name, x.metadata["help"], x.type) for x in own_options()),
        ]
    return sections


def _own_or_set(family: Family) -> Iterable[tuple[str, str, object]]:
    """The options of a family's models, without those of mixers and those that are fairseq's in
    every respect."""
    wanted = {*family.schema.base, *family.schema.follows, *chain(*family.presets.values())}
    if family.schema is MASKED_LANGUAGE_MODEL:
        wanted.update(MASKED_LANGUAGE_MODEL_OPTIONS)
    wanted.difference_update(mixer_options(family.schema.stacks))
    for option in dataclasses.fields(family.schema.config):
        if option.name in wanted:
            yield option.name, option.metadata["help"], option.type


def _table_of_rows(rows: list[dict[str, str]]) -> str:
    return _as_table(list(rows[0]), [list(row.values()) for row in rows])


def _option_list(options: Iterable[tuple[str, str, object]]) -> str:
    """A Markdown list of options, each a name, its help and its type."""
    items = []
    for name, text, type_ in options:
        values = ", ".join(f"`{choice}`" for choice in _choices(type_))
        values = f" one of {values};" if values else ""
        items.append(f"- `--{name.replace('_', '-')}`:{values} {_escaped(text)}")
    return "\n".join(items)


def _choices(type_: object) -> list[str]:
    """The names that an option may have, if it has some."""
    type_ = interpret_dc_type(type_)
    is_choice = isinstance(type_, type) and issubclass(type_, Enum)
    return [choice.value for choice in type_] if is_choice else []


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
