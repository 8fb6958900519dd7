"""Runs stages: what is done is not done again, what was interrupted continues."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..child_processes import running
from ..folder_lock import locked
from .command import Command, Stage
from .errors import RecipeError
from .record import environment, now, write_json
from .settings import ROOT

_LAST_LINES = 20


class Runner:
    """The stages of one run, with their records in ``output/stages``."""

    def __init__(self, output: Path, stages: Sequence[Stage]):
        self.output = output
        self.stages = stages

    def record(self, stage: Stage) -> dict[str, Any] | None:
        """What was written when the stage was finished, None if it was not."""
        path = self._path(stage, "json")
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def records(self) -> dict[str, Any]:
        """Of all stages that are finished, by name."""
        found = {stage.name: self.record(stage) for stage in self.stages}
        return {
            name: {key: value for key, value in record.items() if key != "essence"}
            for name, record in found.items()
            if record
        }

    def is_done(self, stage: Stage) -> bool:
        return not stage.commands or self.record(stage) is not None

    def check(self, chosen: Sequence[str]) -> None:
        """See that the chosen stages can be run, one after the other.

        Raises:
            RecipeError: a stage was begun with other options, or one before is not done, or one
                after is and would no longer fit.
        """
        to_do = []
        for stage in self.stages:
            self._require_same(stage)
            done = self.is_done(stage)
            if done and stage.commands and to_do:
                raise RecipeError(
                    f"the stage {stage.name} is done and {to_do[0]} before it is not; remove "
                    f"{self._path(stage, 'json')} to do it again"
                )
            if not done and stage.name in chosen:
                to_do.append(stage.name)
            elif not done and self._to_do_after(stage, chosen):
                raise RecipeError(f"the stage {stage.name} has to be done first")

    def run(self, chosen: Sequence[str], before: Callable[[Stage], None]) -> None:
        """Run the chosen stages that are not done.

        Args:
            before: called with each of them first.

        Raises:
            RecipeError: a command fails.
        """
        for stage in self.stages:
            if stage.name not in chosen:
                continue
            if not stage.commands:
                print(f"{stage.name}: nothing to do, {stage.note}", flush=True)
            elif self.record(stage) is not None:
                print(f"{stage.name}: done already", flush=True)
            else:
                before(stage)
                self._run(stage)

    def begin(self, stage: Stage, launched: Sequence[str] = ()) -> None:
        """Write that a stage has begun, so that it is continued as it is.

        Args:
            launched: the lines of which one starts it, if that is on other machines.
        """
        self._path(stage, "begun").parent.mkdir(exist_ok=True)
        begun = {**self._identity(stage), "launched": list(launched)}
        write_json(begun, self._path(stage, "begun"))

    def start_over(self, stage: Stage) -> None:
        """Take a stage that was begun here with other options, and has made nothing, as one that
        was not; its log stays beside the new one's."""
        begun = self._begun(stage)
        if not begun or begun.get("launched") or begun["essence"] == stage.essence():
            return
        self._path(stage, "begun").unlink()
        log = self.output / "logs" / f"{stage.name}.log"
        if log.exists():
            os.replace(log, log.with_suffix(".before.log"))

    def finish(self, stage: Stage, begun: str, seconds: float, memory: int | None = None) -> None:
        """Write that a stage is done; ``memory`` is the most that a process had, in bytes."""
        measured = {"begun": begun, "seconds": seconds, "memory": memory}
        self._finish(stage, {**measured, "environment": environment()})

    def finish_elsewhere(self, stage: Stage) -> None:
        """Write that other machines have done a stage: as it was begun, and no more is known."""
        unknown = dict.fromkeys(("begun", "seconds", "memory", "environment"))
        self._finish(stage, {**unknown, "commands": self._begun(stage).get("launched", [])})

    def _begun(self, stage: Stage) -> dict[str, Any]:
        path = self._path(stage, "begun")
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def _finish(self, stage: Stage, measured: dict[str, Any]) -> None:
        content = {
            "stage": stage.name,
            "commands": stage.lines(),
            **self._identity(stage),
            "finished": now(),
            "log": f"logs/{stage.name}.log",
            **measured,
        }
        self._path(stage, "json").parent.mkdir(exist_ok=True)
        write_json(content, self._path(stage, "json"))
        self._path(stage, "begun").unlink(missing_ok=True)

    def _run(self, stage: Stage) -> None:
        log = self.output / "logs" / f"{stage.name}.log"
        log.parent.mkdir(exist_ok=True)
        begun, start = now(), time.monotonic()
        self.begin(stage)
        print(f"{stage.name}: log in {log}", flush=True)
        memory = 0
        for command in stage.commands:
            for path in command.writes:
                _remove(path)
            print(f"+ {command.line()}", flush=True)
            memory = max(memory, _execute(command, log))
        self.finish(stage, begun, round(time.monotonic() - start, 1), memory)

    def _require_same(self, stage: Stage) -> None:
        for kind in ("json", "begun"):
            path = self._path(stage, kind)
            if not path.is_file():
                continue
            before = json.loads(path.read_text(encoding="utf-8"))
            directory = before.get("directory")
            if directory not in (None, self._identity(stage)["directory"]):
                raise RecipeError(
                    f"the stage {stage.name} in {self.output} was run from "
                    f"{(self.output / directory).resolve()}; continue it from there, or choose "
                    "another folder with --output"
                )
            if before["essence"] == stage.essence():
                continue
            raise RecipeError(
                f"the stage {stage.name} in {self.output} was run with other options "
                f"({_difference(before['essence'], stage.essence())}); choose another folder with "
                f"--output, or remove {path} and what the stage made"
            )

    def _identity(self, stage: Stage) -> dict[str, Any]:
        """What a stage that is taken up again has to have in common: its commands and, for their
        paths, where it is run, as seen from its output, so that both may move."""
        return {"essence": stage.essence(), "directory": os.path.relpath(os.curdir, self.output)}

    def _to_do_after(self, stage: Stage, chosen: Sequence[str]) -> bool:
        later = self.stages[self.stages.index(stage) + 1 :]
        return any(other.name in chosen and not self.is_done(other) for other in later)

    def _path(self, stage: Stage, kind: str) -> Path:
        return self.output / "stages" / f"{stage.name}.{kind}"


@contextmanager
def exclusive(output: Path) -> Iterator[None]:
    """The folder of a run, which no other process may write to meanwhile.

    Raises:
        BlockingIOError: one does.
        RecipeError: it has other files.
    """
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()) and not (output / "lock").exists():
        raise RecipeError(f"{output} is not empty and of no run; choose another with --output")
    with locked(output):
        try:
            yield
        finally:
            if [path.name for path in output.iterdir()] == ["lock"]:  # refused before any work
                (output / "lock").unlink()
                output.rmdir()


def _execute(command: Command, log: Path) -> int:
    """Run a command; a file of its output appears complete or not at all.

    Returns:
        The most memory that one of its processes had, in bytes.

    Raises:
        RecipeError: it fails.
    """
    with open(log, "a", encoding="utf-8") as log_file:
        log_file.write(f"+ {command.line()}\n")
        log_file.flush()
        if command.stdout is None:
            return _call(command, log_file, log_file, log)
        partial = command.stdout.with_name(f"{command.stdout.name}.partial")
        with open(partial, "w", encoding="utf-8") as output:
            where = (output, partial) if command.logs_too else (log_file, log)
            memory = _call(command, output, *where)
        os.replace(partial, command.stdout)
        return memory


def _call(command: Command, stdout: TextIO, stderr: TextIO, log: Path) -> int:
    streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
    with running(command.words(), **streams, env=os.environ | _search_paths()) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        if lines and lines[-1].startswith("error: "):
            raise RecipeError(f"{lines[-1].removeprefix('error: ')} (log: {log})")
        print(*lines, sep="\n", file=sys.stderr)
        raise RecipeError(f"{command.arguments[0]} failed; its log is {log}")
    return usage.ru_maxrss * 1024


def _search_paths() -> dict[str, str]:
    """With this Python's programs and this package first, which need not be installed."""
    first = {"PATH": Path(sys.executable).parent, "PYTHONPATH": ROOT}
    return {
        name: os.pathsep.join(filter(None, (str(path), os.environ.get(name))))
        for name, path in first.items()
    }


def _remove(path: Path) -> None:
    """What an interrupted run left at a place where a command writes anew."""
    if path.is_dir():
        for child in path.iterdir():
            _remove(child)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _difference(before: Sequence[str], after: Sequence[str]) -> str:
    """The first thing that differs, in few words."""
    for old, new in zip(before, after, strict=False):
        old_words, new_words = old.split(), new.split()
        for i, (a, b) in enumerate(zip(old_words, new_words, strict=False)):
            if a != b and a.startswith("--"):
                return f"with {' '.join(old_words[i:])}, not {' '.join(new_words[i:])}"
            if a != b:
                return f"{' '.join(old_words[max(i - 1, 0) : i + 1])}, not {b}"
        if len(old_words) != len(new_words):
            if len(old_words) > len(new_words):
                return f"with {' '.join(old_words[len(new_words) :])}"
            return f"without {' '.join(new_words[len(old_words) :])}"
    return "other commands"
