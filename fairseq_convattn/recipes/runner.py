"""Runs stages: finished ones are skipped, interrupted ones continue."""

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..child_processes import run as run_command
from ..run_records import difference, read_json, write_json
from .command import ROOT, RecipeError, Stage, wherever_installed
from .devices import ENDED
from .record import environment, now

_BATCH = re.compile(r"--(max-tokens|batch-size)(?![\w-])")  # how fairseq-train calls it


class Runner:
    """The stages of one run, with their records in ``output/stages``."""

    def __init__(self, output: Path, stages: Sequence[Stage]):
        self.output = output
        self.stages = stages

    def records(self) -> dict[str, Any]:
        """The records of the stages that are finished, by name."""
        found = {stage.name: self._read(stage, "json") for stage in self.stages}
        return {name: record for name, record in found.items() if record}

    def is_done(self, stage: Stage) -> bool:
        return not stage.commands or self._path(stage, "json").is_file()

    def check(self, chosen: Sequence[str]) -> list[str]:
        """Names of the chosen stages that are not done, after checking that they can be run.

        Raises:
            RecipeError: a stage was begun with other options, an earlier stage is not done, or
                a later one is done and would no longer fit.
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
                if missing[0] == "train" and (self.output / ENDED).exists():
                    raise RecipeError(
                        "other machines have ended the training: give the stage train and its "
                        "--nodes too, which records that it is done"
                    )
                raise RecipeError(f"the stage {missing[0]} has to be done first")
            else:
                to_do.append(stage.name)
        return to_do

    def run(self, chosen: Sequence[str]) -> None:
        """Run the chosen stages that are not done; stop at one that other machines must run.

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
        """Record that a stage is done; the optional values are unknown for a stage run elsewhere.

        Args:
            begun: when it began, in ISO 8601.
            seconds: how long it ran.
            memory: the most that one process used, in bytes.
        """
        content = {
            "commands": self._read(stage, "begun").get("commands") or stage.lines(),
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
        """Record that a stage has begun and with which options, so that it can be continued.

        The log of an attempt with other options that left no files is renamed.
        """
        log, record = self._log(stage), self._path(stage, "begun")
        log.parent.mkdir(exist_ok=True)
        record.parent.mkdir(exist_ok=True)
        if log.exists() and self._difference(self._read(stage, "begun"), stage):
            os.replace(log, log.with_suffix(".before.log"))
        content = {**self._identity(stage), "elsewhere": bool(stage.launch)}
        if stage.launch:
            if not stage.left:
                (self.output / ENDED).unlink(missing_ok=True)  # of an earlier training
            begun = self._read(stage, "begun") if stage.left else {}
            content["commands"] = begun.get("commands") or stage.lines()
        write_json(content, record)

    def _ended_elsewhere(self, stage: Stage) -> bool:
        """Whether other machines have finished a stage; if so, records that it is done."""
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
                if stage.name == "train":
                    found = _BATCH.sub("--device-batch", found)
                raise RecipeError(
                    f"the stage {stage.name} in {self.output} was run with other options "
                    f"({found}); repeat them, choose another folder with --output, or remove "
                    f"{self._path(stage, kind)} and what the stage made"
                )

    def _identity(self, stage: Stage) -> dict[str, Any]:
        """What must be equal for a stage to be continued: its options and digests, and the working
        directory that their paths start from, relative to the output, so that both may move
        together."""
        return {
            "settings": [command.comparable_options() for command in stage.commands],
            "digests": stage.digests,
            "directory": os.path.relpath(Path.cwd(), self.output.resolve()),
        }

    def _difference(self, record: Mapping[str, Any], stage: Stage) -> str | None:
        """First difference between a stage and its record; None if they agree."""
        if not record:
            return None
        if not record.keys() >= {"directory", "digests", "settings"}:
            return "its record has no options"
        before, after = (
            [
                {"from": str(self._place(known["directory"]))},
                known["digests"],
                *map(wherever_installed, known["settings"]),
            ]
            for known in (record, self._identity(stage))
        )
        pairs = zip_longest(before, after, fillvalue={})
        return next(filter(None, (difference(*pair) for pair in pairs)), None)

    def _place(self, directory: str) -> Path:
        """The working directory of a record."""
        return (self.output / directory).resolve()

    def _log(self, stage: Stage) -> Path:
        return self.output / "logs" / f"{stage.name}.log"

    def _path(self, stage: Stage, kind: str) -> Path:
        return self.output / "stages" / f"{stage.name}.{kind}"

    def _read(self, stage: Stage, kind: str) -> dict[str, Any]:
        path = self._path(stage, kind)
        return read_json(path) if path.is_file() else {}


def _remove(path: Path) -> None:
    """Remove what an interrupted run left where a command is about to write."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
