"""Runs stages: what is done is not done again, what was interrupted continues."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..child_processes import run as run_command
from ..folder_lock import locked
from ..run_records import difference, read_json, recorded_settings, write_json
from .command import Stage
from .errors import RecipeError
from .record import environment, now

_TO_COMPARE = ("essence", "settings")  # essence: of older records


class Runner:
    """The stages of one run, with their records in ``output/stages``."""

    def __init__(self, output: Path, stages: Sequence[Stage]):
        self.output = output
        self.stages = stages

    def records(self) -> dict[str, Any]:
        """What was written when stages were finished, by name; only of those that are."""
        found = {stage.name: self._read(stage, "json") for stage in self.stages}
        return {
            name: {key: value for key, value in record.items() if key not in _TO_COMPARE}
            for name, record in found.items()
            if record
        }

    def is_done(self, stage: Stage) -> bool:
        return not stage.commands or self._path(stage, "json").is_file()

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
            CommandFailed: a command fails.
        """
        for stage in self.stages:
            if stage.name not in chosen:
                continue
            if not stage.commands:
                print(f"{stage.name}: nothing to do, {stage.note}", flush=True)
            elif self.is_done(stage):
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
        write_json(
            {**self._identity(stage), "launched": list(launched)}, self._path(stage, "begun")
        )

    def start_over(self, stage: Stage) -> None:
        """Forget a stage that was begun here with other options and has made nothing; its log
        stays beside the new one's."""
        begun = self._read(stage, "begun")
        if not begun or begun.get("launched") or not _difference(begun, self._identity(stage)):
            return
        self._path(stage, "begun").unlink()
        log = self.output / "logs" / f"{stage.name}.log"
        if log.exists():
            os.replace(log, log.with_suffix(".before.log"))

    def finish(
        self,
        stage: Stage,
        begun: str | None = None,
        seconds: float | None = None,
        memory: int | None = None,
    ) -> None:
        """Write that a stage is done; of one that other machines did no more is known.

        Args:
            memory: the most that a process had, in bytes.
        """
        launched = self._read(stage, "begun").get("launched")
        content = {
            "stage": stage.name,
            "commands": launched or stage.lines(),
            **self._identity(stage),
            "begun": begun,
            "finished": now(),
            "seconds": seconds,
            "memory": memory,
            "log": f"logs/{stage.name}.log",
            "environment": None if launched else environment(),
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
            memory = max(
                memory, run_command(command.words(), log, command.stdout, command.logs_too)
            )
        self.finish(stage, begun, round(time.monotonic() - start, 1), memory)

    def _require_same(self, stage: Stage) -> None:
        for kind in ("json", "begun"):
            before, identity = self._read(stage, kind), self._identity(stage)
            if not before:
                continue
            directory = before.get("directory")
            if directory not in (None, identity["directory"]):
                raise RecipeError(
                    f"the stage {stage.name} in {self.output} was run from "
                    f"{(self.output / directory).resolve()}; continue it from there, or choose "
                    "another folder with --output"
                )
            if found := _difference(before, identity):
                raise RecipeError(
                    f"the stage {stage.name} in {self.output} was run with other options "
                    f"({found}); choose another folder with --output, or remove "
                    f"{self._path(stage, kind)} and what the stage made"
                )

    def _identity(self, stage: Stage) -> dict[str, Any]:
        """What a stage that is taken up again has to have in common: its settings and, for their
        paths, where it is run, as seen from its output, so that both may move."""
        return {
            "settings": [command.settings() for command in stage.commands],
            "directory": os.path.relpath(os.curdir, self.output),
        }

    def _to_do_after(self, stage: Stage, chosen: Sequence[str]) -> bool:
        later = self.stages[self.stages.index(stage) + 1 :]
        return any(other.name in chosen and not self.is_done(other) for other in later)

    def _path(self, stage: Stage, kind: str) -> Path:
        return self.output / "stages" / f"{stage.name}.{kind}"

    def _read(self, stage: Stage, kind: str) -> dict[str, Any]:
        path = self._path(stage, kind)
        return read_json(path) if path.is_file() else {}


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
        yield


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """What differs between two records of a stage."""
    pairs = zip_longest(*map(recorded_settings, (before, after)), fillvalue={})
    return next(filter(None, (difference(*pair) for pair in pairs)), None)


def _remove(path: Path) -> None:
    """What an interrupted run left at a place where a command writes anew."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
