"""Results to commit: one small JSON file per run, and one Markdown table of many of them."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..durable import appearing
from . import ReportError
from .markdown import Table, cell_code, raw_table, text
from .runs import Run, machine, read_json
from .tables import MISSING, duration, signed

# of results.json, what does not depend on where a run was made
_KEPT = (
    *("title", "paper", "origin", "reading", "unconfirmed", "mixer", "architecture", "seed"),
    *("batch", "data", "scores"),
)
_KEPT_OF_ENVIRONMENT = ("versions", "git", "platform", "processor", "processors", "gpus")
_NEEDED = ("title", "mixer", "command", "environment", "paper")
_PLACES = ("--source", "--data", "--output")
_COLUMNS = (
    *("corpus", "system", "parameters", "updates", "precision"),
    *("metric", "score", "published", "difference", "signature"),
    *("time", "machine", "commit", "command"),
)
_NUMERIC = ("parameters", "updates", "score", "difference")


def collect(folders: Sequence[Path], directory: Path) -> list[Path]:
    """Write ``directory/RUN.json`` for every run: what its results.json and its training log say,
    without a path of this machine.

    Raises:
        ReportError: a folder is no run, or the run has no scores that mean anything.
        FileExistsError: a file is there already.
        OSError: one cannot be read or written.
    """
    contents = {folder.resolve().name: collected(Run(folder)) for folder in folders}
    if len(contents) < len(folders):
        raise ReportError("two runs have folders of the same name")
    directory.mkdir(parents=True, exist_ok=True)
    written = [directory / f"{name}.json" for name in contents]
    for path, content in zip(written, contents.values(), strict=True):
        with appearing(path) as file:
            lines = json.dumps(content, indent=1, ensure_ascii=False)
            file.write_text(f"{lines}\n", encoding="utf-8")
    return written


def collected(run: Run) -> dict[str, Any]:
    """What is kept of a run.

    Raises:
        ReportError: it has no scores that mean anything.
    """
    if run.smoke:
        raise ReportError(f"{run.folder} is a smoke test, whose scores mean nothing")
    if not run.scores:
        raise ReportError(f"{run.folder} has no scores yet")
    checkpoint = run.content.get("checkpoint")
    return {
        "command": _portable(run.content["command"]),
        **{name: run.content[name] for name in _KEPT if name in run.content},
        "checkpoint": Path(checkpoint).name if checkpoint else None,
        "parameters": run.log.parameters,
        "updates": run.log.updates,
        "precision": run.log.precision,
        "seconds": run.log.seconds,
        "validation_perplexity": run.log.perplexity,
        "environment": {
            name: run.environment[name] for name in _KEPT_OF_ENVIRONMENT if name in run.environment
        },
    }


def _portable(command: str) -> str:
    """A recipe's command without the places of a machine."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        option, equals, value = word.partition("=")
        if option in _PLACES:
            if not equals:
                next(words, None)
        elif value.startswith("/"):
            kept.append(f"{option}={Path(value).name}")
        else:
            kept.append(Path(word).name if word.startswith("/") else word)
    return shlex.join(kept)


def results_table(paths: Sequence[Path]) -> str:
    """A Markdown table of collected results, a row for every score that the paper has too, or for
    all scores of a run whose paper has none, and what of their recipes is unconfirmed.

    Raises:
        ReportError: a file holds no results.
        OSError: one cannot be read.
    """
    rows, notes = [], {}
    for path in paths:
        content = read_json(path)
        if not content.get("scores") or not content.keys() >= set(_NEEDED):
            raise ReportError(f"{path} has no scores of a run; --collect writes such files")
        rows += _rows(content)
        if unconfirmed := content.get("unconfirmed"):
            notes[text(f"{content['title']}, unconfirmed: {unconfirmed}.")] = None
    return "\n\n".join([raw_table(Table(_COLUMNS, rows, _NUMERIC)), *notes])


def _rows(content: Mapping[str, Any]) -> list[list[str]]:
    """The rows of one run; what is the same in all of them stands in the first."""
    scores = [score for score in content["scores"] if score["published"]] or content["scores"]
    seconds, environment = content.get("seconds"), content["environment"]
    git = environment.get("git")
    row = {
        "corpus": text(content["title"]),
        "system": text(_system(content)),
        "parameters": _thousands(content.get("parameters")),
        "updates": _thousands(content.get("updates")),
        "precision": content.get("precision") or MISSING,
        "time": duration([seconds] if seconds else []),
        "machine": text(machine(environment) or MISSING),
        "commit": git["commit"][:7] + (", with changes" if git["changed"] else "")
        if git
        else MISSING,
        "command": cell_code(content["command"]),
    }
    rows = []
    for score in scores:
        row |= _score(content, score)
        rows.append([row.get(column, "") for column in _COLUMNS])
        row = {}
    return rows


def _system(content: Mapping[str, Any]) -> str:
    """The mixer, the options that the user gave, and the seed."""
    words = shlex.split(content["command"])
    given = words[words.index("--") + 1 :] if "--" in words else []
    seed = content.get("seed")
    parts = [content["mixer"], shlex.join(given), content.get("checkpoint")]
    return ", ".join(filter(None, [*parts, seed is not None and f"seed {seed}"]))


def _score(content: Mapping[str, Any], score: Mapping[str, Any]) -> dict[str, str]:
    """What the columns from ``metric`` to ``signature`` have."""
    published, mixer = score["published"], content["mixer"]
    figure = published.get(mixer)
    figures = {mixer: figure} if figure is not None else published
    source = score.get("published_in") or content["paper"]
    known = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
    interval = score.get("confidence")
    return {
        "metric": text(score["name"]),
        "score": f"{score['score']:.2f}"
        + (" [{:.2f}, {:.2f}]".format(*interval) if interval else ""),
        "published": text(f"{known}; {source}") if known else MISSING,
        "difference": MISSING if figure is None else signed(score["score"] - figure),
        "signature": cell_code(score["signature"]),
    }


def _thousands(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"
