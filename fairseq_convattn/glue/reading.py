"""GLUE's TSV files: tab-separated, never quoted, so that a quotation mark is a character."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .tasks import HIGHEST_SCORE, GlueError, GlueTask


class Examples(NamedTuple):
    """The rows of a file: their sentences, one or two each, and their labels."""

    sentences: list[tuple[str, ...]]
    labels: list[str]
    malformed: int


def read_examples(task: GlueTask, path: Path) -> Examples:
    """All examples of a file.

    Rows with another number of columns are counted in ``malformed`` where the task drops them.

    Raises:
        GlueError: a column is missing, a row cannot be read (the message names its line) or
            there is none.
        OSError: the file cannot be read.
    """
    examples = Examples([], [], 0)
    rows = _rows(path)
    columns = list(task.columns) or next(rows, (0, []))[1]
    wanted = [_column(name, columns, path) for name in (*task.sentences, task.label)]
    malformed = 0
    for number, cells in rows:
        if len(cells) != len(columns):
            if not task.drop_malformed:
                what = f"{len(cells)} columns, not {len(columns)}"
                raise GlueError(f"{path}, line {number}: {what}")
            malformed += 1
            continue
        *sentences, label = (cells[index] for index in wanted)
        if not _is_label(label, task):
            expected = f"one of {', '.join(task.classes)}" if task.classes else "from 0 to 5"
            raise GlueError(f"{path}, line {number}: {task.label} is '{label}', not {expected}")
        examples.sentences.append(tuple(sentences))
        examples.labels.append(label)
    if not examples.labels:
        raise GlueError(f"{path} has no examples")
    return examples._replace(malformed=malformed)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells; a line ends with a newline and with nothing else."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise GlueError(f"{path}, line {number}: not UTF-8") from None
            yield number, text.split("\t")


def _column(name: str, columns: list[str], path: Path) -> int:
    if name not in columns:
        raise GlueError(f"{path} has no column {name}; its first line is {' | '.join(columns)}")
    return columns.index(name)


def _is_label(text: str, task: GlueTask) -> bool:
    if task.classes:
        return text in task.classes
    try:
        return 0.0 <= float(text) <= HIGHEST_SCORE
    except ValueError:
        return False
