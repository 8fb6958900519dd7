#!/usr/bin/env python
"""Run the fenced commands of the documents as a reader would, in order, on small data.

    python tests/run_documents.py                           # all pages
    python tests/run_documents.py docs/translation.md       # one; later ones may need earlier ones

The pages share a copy of the checkout, so that one can go on from what another has made. Blocks of
bash and Python run; a comment in the Markdown says why one does not:

    <!-- skip: needs a GPU -->

Commands are run as they stand, but generated corpora are small and trainings last 4 updates.
The Python blocks of a page are one program.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    *("fairseq_convattn", "scripts", "benchmarks", "docs", "models", "tests"),
    *("README.md", "setup.py"),
)
FENCE = re.compile(
    r"(?:^<!-- skip: (?P<reason>.+?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

# What is put after a command, by its name; later options win.
SMALL = {
    "fairseq-train": "--max-update 4 --warmup-updates 1 --save-interval-updates 2",
    "fairseq-hydra-train": "optimization.max_update=4 lr_scheduler.warmup_updates=1",
    "fairseq-generate": "--max-len-b 20",
    "fairseq-interactive": "--max-len-b 20",
}
PYTHON = """case "$1" in
  scripts/generate_*) set -- "$@" --train 1000 --valid 20 --test 8 ;;
esac
"""


@dataclass
class Block:
    """A fenced block: where it begins, and why it is not run, if it is not."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README and the documents, in the order of the index; those that it lacks come last."""
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    named = [docs / name for name in re.findall(r"\]\((\w\S*\.md)\)", index)]
    others = sorted({*docs.glob("*.md")} - {*named})
    return [ROOT / "README.md", *(page for page in dict.fromkeys(named) if page.exists()), *others]


def blocks(page: Path) -> list[Block]:
    """The blocks of bash and Python of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("text")) + 1,
            match["language"],
            match["text"],
            match["reason"],
        )
        for match in FENCE.finditer(text)
        if match["language"] in ("bash", "python")
    ]


def runnable(page: Path) -> list[Block]:
    """The blocks of a page as they are run: those of Python as one program, where the first is."""
    found = blocks(page)
    python = [block for block in found if block.language == "python" and not block.reason]
    if len(python) > 1:
        text = "\n".join(block.text for block in python)
        found[found.index(python[0])] = replace(python[0], text=text)
    return [block for block in found if block not in python[1:]]


def workspace(folder: Path) -> dict[str, str]:
    """Fill ``folder`` with a copy of the checkout; the environment for commands in it."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_build")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    programs = Path(sys.executable).parent
    shims = folder / "shims"
    shims.mkdir()
    for name, options in SMALL.items():
        _shim(shims / name, f'exec "{programs / name}" "$@" {options}\n')
    _shim(shims / "python", f'{PYTHON}exec "{sys.executable}" "$@"\n')
    _shim(shims / "convattn", f'exec "{sys.executable}" "{folder / "scripts/cli.py"}" "$@"\n')
    # without VIRTUAL_ENV, so that nothing installs into the environment that runs this
    return {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        "PATH": f"{shims}:{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _shim(file: Path, script: str) -> None:
    file.write_text(f"#!/usr/bin/env bash\n{script}", encoding="utf-8")
    file.chmod(0o755)


def run(block: Block, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Run a block to its end; bash stops at the first command that fails."""
    program = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else ["python", "-c"]
    return subprocess.run(
        [*program, block.text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    chosen = [page.resolve() for page in parser.parse_args().pages] or pages()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        environment = workspace(Path(name))
        for block in (block for page in chosen for block in runnable(page)):
            if block.reason:
                print(f"{block}: skipped, {block.reason}", flush=True)
                continue
            begin = time.monotonic()
            result = run(block, Path(name), environment)
            seconds = time.monotonic() - begin
            print(f"{block}: exit {result.returncode}, {seconds:.0f} s", flush=True)
            if result.returncode:
                failed += 1
                print(result.stdout[-4000:], flush=True)
    sys.exit(f"{failed} blocks failed" if failed else 0)


if __name__ == "__main__":
    main()
