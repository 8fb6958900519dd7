"""What runs of recipes and of fine-tuning note down: JSON, digests, versions, differences."""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import __version__
from .durable import put_in_place


def write_json(content: Any, path: Path) -> None:
    """Write ``path``, whole or not at all; one that is there is replaced."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    put_in_place(partial, path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Python, this package, fairseq, and those of ``packages`` that are installed."""
    found = {"python": platform.python_version(), "fairseq_convattn": __version__}
    fairseq = importlib.metadata.packages_distributions().get("fairseq", ["fairseq"])[0]
    for name in (fairseq, *packages):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first setting that differs, in words; None if none does.

    A value of None is that of an option that takes no value.
    """
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
