"""Compare runs of recipes (convattn recipe).

  convattn report runs/multi30k-*
writes report.html and prints its tables as Markdown: scores with signatures beside the published
figures, differences from attention with p-values (sacreBLEU's paired bootstrap), learning curves,
speed and memory, outputs of every system for the same sentences, and the commands, versions and
commit of each run. Runs that differ in their seeds alone are one system, with mean and standard
deviation; several recipes are several sections. Runs may still be going on: missing figures are
shown as missing. The page is one file that loads nothing and runs no script.

  convattn report runs/multi30k-* --collect docs/data/results
writes docs/data/results/RUN.json for every run: its results, without paths of this machine.

  convattn report --table docs/data/results/*.json
prints one Markdown table of all of them.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from ..command_lines import missing_modules, one_line_errors, whole_number
from ..durable import appearing
from ..scoring.generated import ScoringError
from . import ReportError
from .collected import collect, results_table
from .systems import read_sections
from .tables import markdown


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convattn report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN_DIR", help="folder of a run, with results.json")
    page = "the page; it must not exist (default: report.html)"
    add("--output", type=Path, metavar="FILE", help=page)
    samples = "sentences whose translations or summaries are shown (default: 5)"
    add("--samples", type=whole_number(0), metavar="N", help=samples)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--collect", type=Path, metavar="DIR", help="write results to commit, and no page"
    )
    instead.add_argument(
        "--table", action="store_true", help="print a table of collected results, and no page"
    )
    return parser


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line()
    arguments = parser.parse_args(given)
    no_page = arguments.table or arguments.collect
    if no_page and not (arguments.output is None and arguments.samples is None):
        parser.error("--output and --samples are for the page; --collect and --table write none")
    for name in ("sacrebleu", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with one_line_errors(ReportError, ScoringError):
        try:
            _write(arguments)
        except FileExistsError as error:
            sys.exit(f"error: {error}; choose another with --output or --collect")


def _write(arguments: argparse.Namespace) -> None:
    if arguments.table:
        print(results_table(arguments.runs))
    elif arguments.collect:
        for path in collect(arguments.runs, arguments.collect):
            print(f"wrote {path}", file=sys.stderr)
    else:
        samples = 5 if arguments.samples is None else arguments.samples
        _write_page(arguments.runs, arguments.output or Path("report.html"), samples)


def _write_page(runs: Sequence[Path], output: Path, samples: int) -> None:
    if missing := missing_modules("jinja2", "matplotlib"):
        raise ReportError(f"the page needs {missing}")
    from .page import page

    with appearing(output) as file:
        sections = read_sections(runs)
        file.write_text(page(sections, samples), encoding="utf-8")
    print(markdown(sections))
    print(f"wrote {output}", file=sys.stderr)


if __name__ == "__main__":
    main()
