"""The commands of a stage, as a user would type them."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..run_records import Settings as Options
from ..run_records import settings


class RecipeError(Exception):
    """A recipe cannot be run as asked; the message says in one line why."""


@dataclass(frozen=True)
class Command:
    """One program with its arguments.

    Attributes:
        arguments: the program and what has no name, or several values.
        options: its options.
        stdout: the file that gets its output; None: the log of the stage.
        logs_too: whether that file gets what it writes to standard error as well.
        writes: what an interrupted run may leave and another run refuses to replace.
        scaling: further arguments that say how many devices share the work and in which
            precision, so that they may differ when the work is taken up again.
        further: those that a user gave, which come last and win.
    """

    arguments: Sequence[str]
    options: Options = field(default_factory=dict)
    stdout: Path | None = None
    logs_too: bool = False
    writes: Sequence[Path] = ()
    scaling: Sequence[str] = ()
    further: Sequence[str] = ()

    def words(self) -> list[str]:
        """The program and all its arguments."""
        return [*self.arguments, *arguments(self.options), *self.scaling, *self.further]

    def line(self) -> str:
        """As one line for a shell."""
        redirection = f" > {shlex.quote(str(self.stdout))}" if self.stdout else ""
        redirection += " 2>&1" if self.logs_too else ""
        return shlex.join(self.words()) + redirection

    def settings(self) -> Options:
        """What another run that takes the work up has to have in common."""
        return settings([*self.arguments, *arguments(self.options), *self.further])


@dataclass(frozen=True)
class Stage:
    """The commands of one stage.

    Attributes:
        note: why there are none, what is used instead, or what they need.
        launch: lines for a shell that run the stage on several machines, in place of the commands.
        left: what an earlier run has made of it. It goes on from there with the same options.
    """

    name: str
    commands: Sequence[Command] = ()
    note: str = ""
    launch: Sequence[str] = ()
    left: Sequence[Path] = ()

    def lines(self) -> list[str]:
        """What runs it, as lines for a shell."""
        return list(self.launch) or [command.line() for command in self.commands]


def options(line: str) -> Options:
    """Options as they are typed."""
    return settings(shlex.split(line))


def arguments(options: Options) -> list[str]:
    """``--name value`` for each option."""
    return [part for name, value in options.items() for part in (name, value) if part is not None]
