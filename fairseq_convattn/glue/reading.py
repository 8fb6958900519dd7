"""GLUE's TSV files: tab-separated, never quoted, so that a quotation mark is a character."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .tasks import HIGHEST_SCORE, GlueError, GlueTask


class Examples(NamedTuple):
    """The rows of a file: one or two sentences each, and the labels, if it has some."""

    sentences: list[tuple[str, ...]]
    labels: list[str]


def read_examples(task: GlueTask, path: Path, labelled: bool = True) -> Examples:
    """All examples of a file. If the task drops malformed rows, their number is printed.

    Args:
        labelled: whether it has labels. A test set has none; its first line names the columns,
            and no row is dropped, for each needs a prediction.

    Raises:
        GlueError: a column is missing, a row cannot be read (the message names its line) or
            there is none.
        OSError: the file cannot be read.
    """
    examples, malformed = Examples([], []), 0
    rows = _rows(path)
    columns = list(task.columns if labelled else ()) or next(rows, (0, []))[1]
    for name in (*task.sentences, *([task.label] if labelled else ())):
        if name not in columns:
            first = " | ".join(columns)
            raise GlueError(f"{path} has no column {name}; its first line is {first}")
    for number, cells in rows:
        if len(cells) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            examples.sentences.append(tuple(row[name] for name in task.sentences))
            place = str(len(examples.sentences) - 1)
            if not labelled and row.get("index", place) != place:
                raise GlueError(f"{path}, line {number}: index is '{row['index']}', not {place}")
            if labelled:
                examples.labels.append(_label(row[task.label], task, f"{path}, line {number}"))
        elif labelled and task.drop_malformed:
            malformed += 1
        else:
            found = f"{len(cells)} columns, not {len(columns)}"
            raise GlueError(f"{path}, line {number}: {found}")
    if not examples.sentences:
        raise GlueError(f"{path} has no examples")
    if malformed:
        print(
            f"note: {path} has {malformed:,} rows with too few or too many columns; "
            "they are left out, as GLUE's own reader does"
        )
    return examples


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells; only a newline ends a line."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise GlueError(f"{path}, line {number}: not UTF-8") from None
            yield number, text.split("\t")


def _label(text: str, task: GlueTask, where: str) -> str:
    if not (text in task.classes if task.classes else _is_score(text)):
        expected = f"one of {', '.join(task.classes)}" if task.classes else "from 0 to 5"
        raise GlueError(f"{where}: {task.label} is '{text}', not {expected}")
    return text


def _is_score(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= HIGHEST_SCORE
    except ValueError:
        return False
