"""Results to commit: one small JSON file per run, and one Markdown table of many of them."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..durable import appearing, require_new
from . import ReportError
from .markdown import MISSING, Table, code, raw_table, text
from .runs import NEEDED, Run, given_options, machine, read_object
from .tables import duration, signed

# of results.json, what does not depend on where a run was made
_KEPT = (
    *("title", "paper", "origin", "reading", "unconfirmed", "mixer", "architecture", "seed"),
    *("batch", "data", "scores"),
)
_KEPT_OF_ENVIRONMENT = ("versions", "git", "platform", "processor", "processors", "gpus")
_PLACES = ("--source", "--data", "--output")
_COLUMNS = (
    *("run", "corpus", "system", "parameters", "updates", "precision"),
    *("metric", "score", "published", "difference", "time", "commit"),
)
_NUMERIC = ("run", "parameters", "updates", "score", "difference")


def collect(folders: Sequence[Path], directory: Path) -> list[Path]:
    """Write ``directory/RUN.json`` for every run: what its results.json and its training log say,
    without a path of this machine.

    Raises:
        ReportError: a folder is no run, or the run has no scores that mean anything.
        FileExistsError: a file is there already.
        OSError: one cannot be read or written.
    """
    contents = {directory / f"{run.resolve().name}.json": collected(Run(run)) for run in folders}
    if len(contents) < len(folders):
        raise ReportError("two runs have folders of the same name")
    directory.mkdir(parents=True, exist_ok=True)
    for path in contents:
        require_new(path)
    for path, content in contents.items():
        with appearing(path) as file:
            lines = json.dumps(content, indent=1, ensure_ascii=False)
            file.write_text(f"{lines}\n", encoding="utf-8")
    return list(contents)


def collected(run: Run) -> dict[str, Any]:
    """What is kept of a run.

    Raises:
        ReportError: it has no scores that mean anything.
    """
    if run.smoke:
        raise ReportError(f"{run.folder} is a smoke test, whose scores mean nothing")
    if not run.scores:
        raise ReportError(f"{run.folder} has no scores yet")
    return {
        "command": _portable(run.content["command"]),
        **_part(run.content, _KEPT),
        "checkpoint": run.checkpoint,
        "parameters": run.log.parameters,
        "updates": run.log.updates,
        "precision": run.content.get("precision"),
        "seconds": run.log.seconds,
        "validation_perplexity": run.log.perplexity,
        "environment": _part(run.environment, _KEPT_OF_ENVIRONMENT),
    }


def _part(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: content[name] for name in names if name in content}


def _portable(command: str) -> str:
    """A recipe's command without the places of a machine; a source, which some recipes need, is
    called DIR."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        option, equals, value = word.partition("=") if word.startswith("-") else (word, "", "")
        if option in _PLACES:
            if not equals:
                next(words, None)
            kept += ["--source", "DIR"] if option == "--source" else []
        else:
            kept.append(f"{option}={_without_place(value)}" if equals else _without_place(word))
    return shlex.join(kept)


def _without_place(word: str) -> str:
    return Path(word).name if word.startswith(("/", "../", "~")) else word


def results_table(paths: Sequence[Path]) -> str:
    """A Markdown table of collected results, a row for every score that the paper has too, or for
    all scores of a run whose paper has none. Below it signatures, sources and machines, the
    command of every run, and what of their recipes is unconfirmed.

    Raises:
        ReportError: a file holds no results.
        OSError: one cannot be read.
    """
    rows, commands, unconfirmed, notes = [], [], {}, _Notes()
    for number, path in enumerate(paths, 1):
        content = _read_collected(path)
        scores = [x for x in content["scores"] if x["published"]] or content["scores"]
        first, *others = [_cells_of_score(content, score, notes) for score in scores]
        first |= {"run": str(number), **_cells_of_run(content, notes)}
        rows += [[cells.get(name, "") for name in _COLUMNS] for cells in (first, *others)]
        commands.append(f"{number}. {code(content['command'])}")
        if what := content.get("unconfirmed"):
            unconfirmed[text(f"{content['title']}, unconfirmed: {what}.")] = None
    parts = [raw_table(Table(_COLUMNS, rows, _NUMERIC)), str(notes)]
    return "\n\n".join([*parts, "Commands, by run:", "\n".join(commands), *unconfirmed])


class _Notes(list[str]):
    """Texts below a table, which refers to them by number."""

    def reference(self, content: str) -> str:
        """The number of a note, added if new."""
        if content not in self:
            self.append(content)
        return f"[{self.index(content) + 1}]"

    def __str__(self) -> str:
        return "\n".join(f"- {self.reference(content)} {content}" for content in self)


def _read_collected(path: Path) -> dict[str, Any]:
    content = read_object(path, NEEDED)
    if not content["scores"]:
        raise ReportError(f"{path} has no scores of a finished run")
    if content.get("smoke"):
        raise ReportError(f"{path} is of a smoke test, whose scores mean nothing")
    return content


def _cells_of_run(content: Mapping[str, Any], notes: _Notes) -> dict[str, str]:
    seed, seconds = content.get("seed"), content.get("seconds")
    git, device = content["environment"].get("git"), machine(content["environment"])
    changed = ", with changes" if git and git["changed"] else ""
    system = [content["mixer"], shlex.join(given_options(content)), content.get("checkpoint")]
    system += [f"seed {seed}"] if seed is not None else []
    time = [duration(seconds) if seconds else MISSING]
    time += [notes.reference(text(device))] if device else []
    return {
        "corpus": text(content["title"]),
        "system": text(", ".join(filter(None, system))),
        "parameters": _thousands(content.get("parameters")),
        "updates": _thousands(content.get("updates")),
        "precision": content.get("precision") or MISSING,
        "time": " ".join(time),
        "commit": f"{git['commit'][:7]}{changed}" if git else MISSING,
    }


def _cells_of_score(
    content: Mapping[str, Any], score: Mapping[str, Any], notes: _Notes
) -> dict[str, str]:
    published, interval = score["published"], score.get("confidence")
    figure = published.get(content["mixer"])
    figures = {content["mixer"]: figure} if figure is not None else published
    known = [f"{name} {value:.2f}" for name, value in figures.items()]
    spread = " [{:.2f}, {:.2f}]".format(*interval) if interval else ""
    cells = {
        "metric": f"{text(score['name'])} {notes.reference(code(score['signature']))}",
        "score": f"{score['score']:.2f}{spread}",
        "published": MISSING,
        "difference": MISSING if figure is None else signed(score["score"] - figure),
    }
    if known:
        source = notes.reference(text(score["published_in"]))
        cells["published"] = f"{', '.join(known)} {source}"
    return cells


def _thousands(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"
