"""Records of recipes and of fine-tuning: JSON, digests, versions, options of commands."""

import hashlib
import importlib.metadata
import json
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .durable import put_in_place


def write_json(content: Any, path: Path) -> None:
    """Write or replace ``path``, completely or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    put_in_place(partial, path)


class RecordError(OSError):
    """A record is damaged; the message names the file."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        RecordError: it holds none.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise RecordError(f"{path} is damaged: it is not a JSON object")
    return content


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python, this package, fairseq, and those of ``packages`` that are installed."""
    found = {"python": platform.python_version(), "fairseq_convattn": __version__}
    fairseq = importlib.metadata.packages_distributions().get("fairseq", ["fairseq"])[0]
    for name in (fairseq, *packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


CommandOptions = Mapping[str, str | None]
"""Options of a command by name; a flag without a value has None."""


_SHORT = re.compile(r"-[a-zA-Z]")  # -1 is a value


def parse_options(words: Sequence[str]) -> dict[str, str | None]:
    """The options of a command line.

    Returns:
        The last value of each option by name, and under ``command`` the words before them.
    """
    found: dict[str, str | None] = {}
    name, command = "", []
    for word in words:
        if word.startswith("--") or (name and _SHORT.match(word)):
            name, equals, value = word.partition("=")
            found[name] = value if equals else None
        elif name:
            found[name] = word if found[name] is None else f"{found[name]} {word}"
        else:
            command.append(word)
    return {"command": shlex.join(command), **found} if command else found


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first entry that differs, in words; None if all are equal."""
    for name in {**before, **after}:
        if name not in after:
            return f"with {_spelled(name, before[name])}"
        if name not in before:
            return f"without {_spelled(name, after[name])}"
        if before[name] != after[name]:
            return f"{_spelled(name, before[name])}, not {after[name]}"
    return None


def _spelled(name: str, value: Any) -> str:
    return name if value is None else f"{name} {value}"
