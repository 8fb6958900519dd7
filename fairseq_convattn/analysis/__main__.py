"""How positions enter a model, read from its checkpoint (Wennberg and Henter 2021).

  python -m fairseq_convattn.analysis checkpoints/checkpoint_best.pt
prints R^2 of the Toeplitz fit, 1 where a table depends on the distance of two positions alone, of
E E^T (E: the position embeddings, learned or sinusoidal) and of E W_Q W_K^T E^T of every head,
overall and by blocks of positions. In --output it writes analysis.json with all numbers, and
figures: these, the curves of relative terms (fixed, tisa, t5, ...) and the kernels of lightweight
convolutions, of every layer and head.
  python -m fairseq_convattn.analysis checkpoints/checkpoint_*_*.pt
adds R^2 against updates; the other figures are of the checkpoint with the most.

Any checkpoint of fairseq's will do, of any age, and any of this plugin. A table of white noise
does not have an R^2 of 0, as its diagonal sticks out, so what it has is given beside it.
"""

import argparse
import importlib.util
import logging
import sys

from ..checkpoints.files import CheckpointError, require_new
from .output import write_analysis
from .report import analyse, markdown


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 on")
    return int(text)


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_convattn.analysis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT")
    parser.add_argument(
        "--block",
        type=positive,
        default=128,
        metavar="N",
        help="positions in a block (default: 128, the length that BERT saw most)",
    )
    parser.add_argument(
        "--output",
        default="analysis",
        metavar="DIR",
        help="directory to write; it must not exist (default: analysis)",
    )
    return parser


def main() -> None:
    parser = command_line()
    arguments = parser.parse_args()
    if not importlib.util.find_spec("matplotlib"):
        parser.error("the figures need matplotlib: pip install matplotlib")
    try:
        require_new(arguments.output)
        results, last = analyse(
            arguments.checkpoints,
            arguments.block,
            progress=lambda path: print(f"reading {path}", file=sys.stderr, flush=True),
        )
        print(markdown(results))
        files = write_analysis(arguments.output, results, last, arguments.block)
    except FileExistsError as error:
        sys.exit(f"error: {error}; choose another with --output")
    except (CheckpointError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"\nwrote {arguments.output}: {', '.join(files)}")


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)  # fairseq's import asks for everything
    main()
