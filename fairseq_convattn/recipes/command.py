"""The commands of a stage, as a user would type them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..run_records import CommandOptions, parse_options

ROOT = Path(__file__).resolve().parents[2]
_CHECKOUT = ROOT / "scripts"
_SCRIPTS = _CHECKOUT if (_CHECKOUT / "setup.sh").is_file() else ROOT / "convattn"
_PACKAGE = ROOT / "fairseq_convattn"
_SCRIPT = re.compile(r"^(?:.*/)?(?:scripts|convattn)/(\w+\.(?:py|sh))$")


class RecipeError(Exception):
    """A recipe cannot be run as asked; the message says in one line why."""


@dataclass(frozen=True)
class Command:
    """One program with its arguments.

    Attributes:
        arguments: the program, its positional arguments, and options with several values.
        options: its other options.
        stdout: the file that gets its output; None: the log of the stage.
        logs_too: whether that file gets standard error as well.
        writes: files that an interrupted run may leave and that the program would not replace.
        scaling: arguments for devices and precision, which may differ when a run is continued.
        further: arguments that a user gave; they come last and win.
        not_passed: further ones that the program does not know.
    """

    arguments: Sequence[str]
    options: CommandOptions = field(default_factory=dict)
    stdout: Path | None = None
    logs_too: bool = False
    writes: Sequence[Path] = ()
    scaling: Sequence[str] = ()
    further: Sequence[str] = ()
    not_passed: Sequence[str] = ()

    def words(self) -> list[str]:
        """The program and all its arguments."""
        further = (word for word in self.further if word not in self.not_passed)
        return [*self.arguments, *arguments(self.options), *self.scaling, *further]

    def line(self) -> str:
        """As one line for a shell."""
        redirection = f" > {shlex.quote(str(self.stdout))}" if self.stdout else ""
        redirection += " 2>&1" if self.logs_too else ""
        return shlex.join(self.words()) + redirection

    def comparable_options(self) -> CommandOptions:
        """The options that must be equal for another run to continue the work."""
        return parse_options([*self.arguments, *arguments(self.options), *self.further])


@dataclass(frozen=True)
class Stage:
    """The commands of one stage.

    Attributes:
        note: why there are no commands, what is used instead, or what they need.
        launch: lines for a shell that run the stage on several machines, in place of the commands.
        left: files of an earlier, interrupted run, which this stage continues.
        digests: of files whose content must be equal for another run to continue the work, by name.
    """

    name: str
    commands: Sequence[Command] = ()
    note: str = ""
    launch: Sequence[str] = ()
    left: Sequence[Path] = ()
    digests: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The stage as lines for a shell."""
        return list(self.launch) or [command.line() for command in self.commands]


def script(name: str) -> str:
    """The path of a script, relative to the working directory if it lies below it."""
    return _from_here(_SCRIPTS / name)


def convattn() -> list[str]:
    """The words of ``convattn``, which need not be on the path."""
    return ["python", script("cli.py")]


def user_dir() -> str:
    return _from_here(_PACKAGE)


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def wherever_installed(options: CommandOptions) -> CommandOptions:
    """Options with the paths of our scripts and of the package as in a clone, so that another
    installation continues a run."""
    found = dict(options)
    if Path(found.get("--user-dir") or "").name == _PACKAGE.name:
        found["--user-dir"] = _PACKAGE.name
    if "command" in found:
        words = shlex.split(found["command"])
        found["command"] = shlex.join(_SCRIPT.sub(r"scripts/\1", word) for word in words)
    return found


def options(line: str) -> CommandOptions:
    """Parse options from a line, as a user would type them."""
    return parse_options(shlex.split(line))


def arguments(options: CommandOptions) -> list[str]:
    """``--name value`` for each option."""
    return [part for name, value in options.items() for part in (name, value) if part is not None]
