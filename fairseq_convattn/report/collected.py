"""Results to commit: one small JSON file per run, and one Markdown table of many of them."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..durable import appearing, require_new
from ..markdown import MISSING, Table, code, raw_table, text
from . import ReportError
from .runs import NEEDED, Run, given_options, machine, read_object
from .tables import duration, signed

# of results.json, what does not depend on where a run was made
_KEPT = (
    *("title", "paper", "origin", "reading", "unconfirmed", "mixer", "architecture", "seed"),
    *("batch", "data", "scores"),
)
_KEPT_OF_ENVIRONMENT = ("versions", "git", "platform", "processor", "processors", "gpus")
_PLACES = ("--source", "--data", "--output")
_OF_INTERVALS = "Brackets: 95 % interval."
_OF_DIFFERENCES = "Parentheses: difference from the published figure of the same mixer."
_BEFORE_SCORES = ("run", "system", "parameters", "updates", "precision")
_AFTER_SCORES = ("time", "commit")
_NUMERIC = ("run", "parameters", "updates")
_WAY = ", "  # in a score's name, before the way in which it is computed or its baseline
_PRECISIONS = {"bfloat16": "--bf16", "float16": "--fp16", "float32": "--fp32"}


def collect(folders: Sequence[Path], directory: Path) -> list[Path]:
    """Write ``directory/RUN.json`` for every run: what its results.json and its training log say,
    without a path of this machine.

    Raises:
        ReportError: a folder is not a run, or the run has no scores that mean anything.
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
            file.write_text(_a_line_for_each_key(content), encoding="utf-8")
    return list(contents)


def _a_line_for_each_key(content: Mapping[str, Any]) -> str:
    dump = partial(json.dumps, ensure_ascii=False)
    lines = (f" {dump(key)}: {dump(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


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
        "ended_by": run.log.ended_by,
        "precision": run.content.get("precision"),
        "seconds": run.log.seconds,
        "sessions": run.log.sessions,
        "validation_loss": run.log.validation_loss,
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
    """Collected results as Markdown: for every corpus a table of runs. Its columns are the scores,
    first those that the paper has too; where it has some, without scores that are computed in
    another way. Then come signatures, sources and machines, every run's command, and what of their
    recipes is unconfirmed.

    Raises:
        ReportError: a file holds no results.
        OSError: one cannot be read.
    """
    runs = [(number, _read_collected(path)) for number, path in enumerate(paths, 1)]
    corpora: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for number, content in runs:
        corpora.setdefault(content["title"], []).append((number, content))
    compared = any(
        content["mixer"] in score["published"] for _, content in runs for score in _scores(content)
    )
    notes, parts = _Notes(), [f"{_OF_INTERVALS} {_OF_DIFFERENCES}" if compared else _OF_INTERVALS]
    for title, group in corpora.items():
        parts += [f"### {text(title)}"] if len(corpora) > 1 else []
        parts.append(_table_of_corpus(group, notes))
    commands = [f"{number}. {code(_repeating(content))}" for number, content in runs]
    unconfirmed = dict.fromkeys(
        text(f"{content['title']}, unconfirmed: {what}.")
        for _, content in runs
        if (what := content.get("unconfirmed"))
    )
    return "\n\n".join([*parts, str(notes), "Commands, by run:", "\n".join(commands), *unconfirmed])


def _repeating(content: Mapping[str, Any]) -> str:
    """The command of a run, with its precision: a recipe's own depends on the processor."""
    command, option = content["command"], _PRECISIONS.get(content.get("precision") or "")
    words = shlex.split(command)
    given = (word for word in words if word.startswith("--"))
    if option is None or any(word.endswith(("fp16", "bf16", "fp32", "amp")) for word in given):
        return command
    return f"{command} {option}" if "--" in words else f"{command} -- {option}"


def _table_of_corpus(runs: Sequence[tuple[int, Mapping[str, Any]]], notes: "_Notes") -> str:
    """The runs of one corpus, below the published figures and baselines."""
    heads = dict.fromkeys(_head(score, notes) for _, content in runs for score in _scores(content))
    others = _other_systems([score for _, content in runs for score in content["scores"]], notes)
    rows = [
        {"run": str(number), **_cells_of_run(content, notes), **_cells_of_scores(content, notes)}
        for number, content in runs
    ]
    columns = (*_BEFORE_SCORES, *heads, *_AFTER_SCORES)
    cells = [[row.get(name, "") for name in columns] for row in (*others, *rows)]
    return raw_table(Table(columns, cells, _NUMERIC))


def _other_systems(
    scores: Sequence[Mapping[str, Any]], notes: "_Notes"
) -> Iterable[Mapping[str, str]]:
    """Rows of published figures and of baselines."""
    rows: dict[str, dict[str, str]] = {}
    for score in scores:
        source = text(score["published_in"])
        cells = {
            f"{text(mixer)}, published {notes.reference(source)}": f"{figure:.2f}"
            for mixer, figure in score["published"].items()
        }
        if baseline := score.get("baseline"):
            cells[f"{text(baseline)}, baseline"] = f"{score['score']:.2f}{_interval(score)}"
        for system, cell in cells.items():
            rows.setdefault(system, {"system": system})[_head(score, notes)] = cell
    return rows.values()


def _scores(content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Those of the model, published ones first; if there are some, none with the name of another
    way to compute it."""
    own = [score for score in content["scores"] if not score.get("baseline")]
    published = [score for score in own if score["published"]]
    others = [score for score in own if not score["published"]]
    return [*published, *(x for x in others if not published or _WAY not in x["name"])]


def _head(score: Mapping[str, Any], notes: "_Notes") -> str:
    """The column of a score: its name and signature."""
    name = score["name"].removesuffix(f"{_WAY}{score.get('baseline')}")
    return f"{text(name)} {notes.reference(code(score['signature']))}"


def _interval(score: Mapping[str, Any]) -> str:
    interval = score.get("confidence")
    return " [{:.2f}, {:.2f}]".format(*interval) if interval else ""


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
    time += [f"in {sessions} sessions"] if (sessions := content.get("sessions", 1)) > 1 else []
    time += [notes.reference(text(device))] if device else []
    return {
        "system": text(", ".join(filter(None, system))),
        "parameters": _thousands(content.get("parameters")),
        "updates": _thousands(content.get("updates")),
        "precision": text(content.get("precision") or MISSING),
        "time": " ".join(time),
        "commit": f"{text(git['commit'][:7])}{changed}" if git else MISSING,
    }


def _cells_of_scores(content: Mapping[str, Any], notes: _Notes) -> dict[str, str]:
    """Score, interval, and difference from the published figure of the same mixer, by column."""
    cells = {}
    for score in _scores(content):
        figure = score["published"].get(content["mixer"])
        difference = "" if figure is None else f" ({signed(score['score'] - figure)})"
        cells[_head(score, notes)] = f"{score['score']:.2f}{_interval(score)}{difference}"
    return cells


def _thousands(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"
