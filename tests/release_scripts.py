"""Preparation scripts under test, and a server for what they download.

``Scripts.for_release`` copies the scripts and puts a small corpus's checksums and numbers in the
place of the release's, so that they take it for the whole release.
"""

import hashlib
import importlib
import os
import random
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

from fairseq.data import Dictionary, data_utils

SCRIPTS = Path(__file__).parents[1] / "scripts"


class Scripts:
    """A copy of the preparation scripts and what they leave in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder / "scripts"
        self.bin = folder / "bin"
        self.bin.mkdir()
        shutil.copytree(SCRIPTS, self.folder)

    def for_release(self, name: str, **replacements: object) -> None:
        """Replace what ``name=`` or ``[name]=`` is in a script, in the order it appears."""
        script = self.folder / f"prepare_{name}.sh"
        text = script.read_text(encoding="utf-8")
        for key, values in replacements.items():
            for value in values if isinstance(values, list) else [values]:
                pattern = rf"(^|[\[ (]){re.escape(key)}(\]?)=(?!<)\w+"
                text, count = re.subn(
                    pattern, rf"\g<1>{key}\g<2>=<{value}", text, count=1, flags=re.M
                )
                assert count == 1, f"{key} is not in {script.name}"
        script.write_text(text.replace("=<", "="), encoding="utf-8")

    def stand_in(self, command: str, text: str) -> None:
        (self.bin / command).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / command).chmod(0o755)

    def prepare(self, name: str, *arguments: object) -> subprocess.CompletedProcess:
        path = f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(self.folder / f"prepare_{name}.sh"), *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "2"},
            check=False,
        )


class Mirror(ThreadingHTTPServer):
    """Serves a folder; ``cut`` ends the next answers early, without ranges it cannot resume."""

    def __init__(self, folder: Path, ranges: bool = True):
        super().__init__(("127.0.0.1", 0), MirrorHandler)
        self.folder, self.ranges = folder, ranges
        self.cut: list[int] = []
        self.requests: list[tuple[str, str | None]] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class MirrorHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        server.requests.append((self.path[1:], wanted))
        file = server.folder / self.path[1:]
        if not file.is_file():
            return self.send_error(404)
        content = file.read_bytes()
        start = int(wanted[len("bytes=") : -1]) if wanted and server.ranges else 0
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + server.cut.pop(0) if server.cut else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *arguments):
        pass


def load_script(name: str) -> ModuleType:
    """A module of scripts/."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return importlib.import_module(name)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sentences(rng: random.Random, count: int) -> str:
    words = "the an <unk> = – @-@ bär 日本 U.S. rare".split()
    return "".join(" ".join(rng.choices(words, k=rng.randint(1, 9))) + "\n" for _ in range(count))


def tokens(text: str) -> int:
    return len(text.split()) + text.count("\n")


def binarised(prefix: Path, dictionary: Path) -> list[str]:
    """The sentences that fairseq-train would see, in its order."""
    words = Dictionary.load(str(dictionary))
    data = data_utils.load_indexed_dataset(str(prefix), words, "mmap")
    return [words.string(data[i]) for i in range(len(data))]


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def assert_refused(run: subprocess.CompletedProcess, *parts: str) -> None:
    assert run.returncode == 1, run.stdout + run.stderr
    last_line = run.stderr.splitlines()[-1]
    assert last_line.startswith("error: ")
    for part in parts:
        assert part in last_line
