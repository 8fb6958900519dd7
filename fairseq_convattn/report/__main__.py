"""Runs of recipes (python -m fairseq_convattn.recipes) side by side, as one page.

  python -m fairseq_convattn.report runs/multi30k-*
writes report.html and prints its tables as Markdown: scores with signatures beside the published
figures, differences from attention with p-values (sacreBLEU's paired bootstrap), learning curves,
speed and memory, outputs of every system for the same sentences, and the commands, versions and
commit of each run. Runs that differ in their seeds alone are one system, with mean and standard
deviation; several recipes are several sections. Runs may still be going on: what is not there yet
is shown as missing.

The page is one file that loads nothing and runs no script.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..checkpoints.files import require_new
from ..scoring.generated import ScoringError
from . import ReportError
from .markdown import markdown
from .page import page
from .systems import read_sections


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_convattn.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN_DIR", help="folder of a run, with results.json")
    add(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page; it must not exist (default: report.html)",
    )
    add(
        "--samples",
        type=_count,
        default=5,
        metavar="N",
        help="sentences whose translations or summaries are shown (default: 5)",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 0 on")
    return int(text)


def main(given: Sequence[str] | None = None) -> None:
    arguments = command_line().parse_args(given)
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    try:
        require_new(arguments.output)
        sections = read_sections(arguments.runs)
        _write(page(sections, arguments.samples), arguments.output)
    except FileExistsError as error:
        sys.exit(f"error: {error}; choose another with --output")
    except (ReportError, ScoringError, OSError) as error:
        sys.exit(f"error: {error}")
    print(markdown(sections))
    print(f"wrote {arguments.output}", file=sys.stderr)


def _write(text: str, path: Path) -> None:
    """The file appears complete or not at all, and replaces none."""
    with TemporaryDirectory(dir=path.parent, prefix=".writing-") as directory:
        complete = Path(directory, path.name)
        complete.write_text(text, encoding="utf-8")
        require_new(path)
        os.replace(complete, path)


if __name__ == "__main__":
    main()
