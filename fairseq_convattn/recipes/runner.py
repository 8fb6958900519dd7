"""Runs stages: what is done is not done again, what was interrupted continues."""

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..child_processes import run as run_command
from ..folder_lock import locked
from ..run_records import difference, read_json, write_json
from .command import RecipeError, Stage
from .devices import ENDED
from .record import environment, now
from .settings import ROOT


class Runner:
    """The stages of one run, with their records in ``output/stages``."""

    def __init__(self, output: Path, stages: Sequence[Stage]):
        self.output = output
        self.stages = stages

    def records(self) -> dict[str, Any]:
        """What was written when stages were finished, by name; only of those that are."""
        found = {stage.name: self._read(stage, "json") for stage in self.stages}
        return {name: record for name, record in found.items() if record}

    def is_done(self, stage: Stage) -> bool:
        return not stage.commands or self._path(stage, "json").is_file()

    def check(self, chosen: Sequence[str]) -> list[str]:
        """See that the chosen stages can be run, one after the other; those that are not done.

        Raises:
            RecipeError: a stage was begun with other options, or one before is not done, or one
                after is and would no longer fit.
        """
        to_do, missing = [], []
        for stage in self.stages:
            self._require_same(stage)
            if self.is_done(stage):
                if stage.commands and to_do:
                    raise RecipeError(
                        f"the stage {stage.name} is done and {to_do[0]} before it is not; remove "
                        f"{self._path(stage, 'json')} to do it again"
                    )
            elif stage.name not in chosen:
                missing.append(stage.name)
            elif missing:
                raise RecipeError(f"the stage {missing[0]} has to be done first")
            else:
                to_do.append(stage.name)
        return to_do

    def run(self, chosen: Sequence[str]) -> None:
        """Run the chosen stages that are not done, as far as that is here.

        Raises:
            CommandFailed: a command fails.
        """
        for stage in self.stages:
            if stage.name not in chosen:
                continue
            if not stage.commands:
                print(f"{stage.name}: nothing to do, {stage.note}", flush=True)
            elif self.is_done(stage) or self._ended_elsewhere(stage):
                print(f"{stage.name}: done already", flush=True)
            elif stage.launch:
                self._begin(stage)
                print(
                    f"{stage.name} has not ended; start it with one of these, with {ROOT} and the "
                    "data on every machine, and repeat this command when it is done\n"
                )
                print("\n".join(stage.launch))
                return
            else:
                self._run(stage)

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
        content = {
            "commands": stage.lines(),
            **self._identity(stage),
            "begun": begun,
            "finished": now(),
            "seconds": seconds,
            "memory": memory,
            "log": f"logs/{stage.name}.log",
            "environment": None if stage.launch else environment(),
        }
        self._path(stage, "json").parent.mkdir(exist_ok=True)
        write_json(content, self._path(stage, "json"))
        self._path(stage, "begun").unlink(missing_ok=True)

    def _run(self, stage: Stage) -> None:
        log = self._log(stage)
        begun, start = now(), time.monotonic()
        self._begin(stage)
        print(f"{stage.name}: log in {log}", flush=True)
        memory = 0
        for command in stage.commands:
            for path in command.writes:
                _remove(path)
            print(f"+ {command.line()}", flush=True)
            used = run_command(command.words(), log, command.stdout, command.logs_too)
            memory = max(memory, used)
        self.finish(stage, begun, round(time.monotonic() - start, 1), memory)

    def _begin(self, stage: Stage) -> None:
        """Write that a stage has begun, so that it is continued as it is.

        The log of one that was begun with other options, and has left nothing, is set aside.
        """
        log, record = self._log(stage), self._path(stage, "begun")
        log.parent.mkdir(exist_ok=True)
        record.parent.mkdir(exist_ok=True)
        if log.exists() and self._difference(self._read(stage, "begun"), stage):
            os.replace(log, log.with_suffix(".before.log"))
        write_json({**self._identity(stage), "elsewhere": bool(stage.launch)}, record)

    def _ended_elsewhere(self, stage: Stage) -> bool:
        """Whether several machines have run it to its end, which is noted down."""
        end = self.output / ENDED
        if not (stage.launch and stage.left and end.exists()):
            return False
        self.finish(stage)
        end.unlink()
        return True

    def _require_same(self, stage: Stage) -> None:
        for kind in ("json", "begun"):
            before = self._read(stage, kind)
            if kind == "begun" and not stage.left and not before.get("elsewhere"):
                continue
            if found := self._difference(before, stage):
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

    def _difference(self, record: Mapping[str, Any], stage: Stage) -> str | None:
        """What a record, if there is one, says of a stage that is otherwise now."""
        if not record:
            return None
        if not record.keys() >= {"directory", "settings"}:
            return "that its record does not tell"
        before, after = (
            [{"from": str((self.output / known["directory"]).resolve())}, *known["settings"]]
            for known in (record, self._identity(stage))
        )
        pairs = zip_longest(before, after, fillvalue={})
        return next(filter(None, (difference(*pair) for pair in pairs)), None)

    def _log(self, stage: Stage) -> Path:
        return self.output / "logs" / f"{stage.name}.log"

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
    files = {file.name for file in output.iterdir()} - {"lock"}
    if files and files.isdisjoint({"results.json", "stages"}):
        raise RecipeError(f"{output} is not empty and of no run; choose another with --output")
    with locked(output):
        yield


def _remove(path: Path) -> None:
    """What an interrupted run left at a place where a command writes anew."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
