"""How positions enter a model, read from its checkpoint (Wennberg and Henter 2021).

  convattn analyse checkpoints/checkpoint_best.pt
prints its findings, and R^2 of the Toeplitz fit (1 where a table depends on distance alone): of
E E^T (E: the position embeddings, learned or sinusoidal) and of E W_Q W_K^T E^T of every head,
overall and by blocks of positions. In --output it writes
analysis.json with all numbers, and figures: these, the curves of relative terms (fixed, tisa,
t5, ...) and the kernels of lightweight convolutions, of every layer and head.
  convattn analyse checkpoints/checkpoint_*_*.pt
adds R^2 against updates; the other figures are of the checkpoint with the most.

Any checkpoint of fairseq's will do, of any age, and any of this plugin. A table of white noise
does not have an R^2 of 0, as its diagonal stands out, so its R^2 is given too.
"""

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ..checkpoints.checks import CheckpointError
from ..command_lines import missing_modules, one_line_errors, whole_number
from ..durable import appearing, require_new
from .report import analyse, markdown


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convattn analyse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="CHECKPOINT")
    block = "positions in a block (default: 128, the length that BERT saw most)"
    add("--block", type=whole_number(1), default=128, metavar="N", help=block)
    output = "directory to write; it must not exist (default: analysis)"
    add("--output", type=Path, default=Path("analysis"), metavar="DIR", help=output)
    return parser


def main() -> None:
    arguments = command_line().parse_args()
    with one_line_errors(CheckpointError):
        try:
            require_new(arguments.output)
            results, tables = analyse(arguments.checkpoints, arguments.block)
            print(markdown(results))
            files = write_analysis(arguments.output, results, tables, arguments.block)
        except FileExistsError as error:
            sys.exit(f"error: {error}; choose another with --output")
    print(f"\nwrote {arguments.output}: {', '.join(files)}")
    if missing := missing_modules("matplotlib"):
        print(f"no figures, which need {missing}", file=sys.stderr)


def write_analysis(
    directory: Path, results: Sequence[dict], tables: Mapping[str, Tensor], block: int
) -> list[str]:
    """Write ``analysis.json`` and, if matplotlib is installed, :func:`figures.figures` of the same
    arguments; the directory appears complete or not at all.

    Returns:
        The names of the files.

    Raises:
        FileExistsError: ``directory`` is there already.
        FileNotFoundError: its parent is not there.
    """
    with appearing(directory) as complete:
        complete.mkdir()
        content = {"block": block, "checkpoints": results}
        text = json.dumps(content, indent=1, allow_nan=False)
        (complete / "analysis.json").write_text(text, encoding="utf-8")
        if not missing_modules("matplotlib"):
            from .figures import figures

            for name, figure in figures(results, tables, block):
                figure.savefig(complete / f"{name}.png", dpi=200)
    return sorted(path.name for path in directory.iterdir())


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)  # fairseq's import asks for everything
    main()
