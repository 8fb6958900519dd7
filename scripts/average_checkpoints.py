#!/usr/bin/env python
"""Average the weights of checkpoints.

The newest five epochs (or updates, where no epoch was saved):
  python scripts/average_checkpoints.py --inputs CKPT_DIR --last 5 --output OUT.pt
The best five by the validation metric, of those that --keep-best-checkpoints kept:
  python scripts/average_checkpoints.py --inputs CKPT_DIR --best 5 --output OUT.pt
Any files:
  python scripts/average_checkpoints.py --inputs A.pt B.pt --output OUT.pt

The result decodes with fairseq-generate --path OUT.pt and is fine-tuned with
fairseq-train --finetune-from-model OUT.pt.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_convattn.checkpoint_averaging import (
    average_checkpoints,
    best_checkpoints,
    last_checkpoints,
)
from fairseq_convattn.checkpoint_files import CheckpointError


def positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inputs", nargs="+", required=True, help="checkpoints, or the directory of them"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=positive, metavar="N", help="the newest N")
    choice.add_argument("--best", type=positive, metavar="N", help="the best N")
    parser.add_argument("--output", required=True, help="file to write; it must not exist")
    return parser


def chosen(arguments: argparse.Namespace) -> Sequence[str | Path]:
    """The files to average.

    Raises:
        CheckpointError: there are not as many as asked for, or a directory is given alone.
    """
    if not arguments.last and not arguments.best:
        for path in arguments.inputs:
            if Path(path).is_dir():
                raise CheckpointError(f"{path} is a directory; add --last N or --best N")
        return arguments.inputs
    if len(arguments.inputs) != 1:
        raise CheckpointError("--last and --best take one directory as --inputs")
    if arguments.last:
        return last_checkpoints(arguments.inputs[0], arguments.last)
    return best_checkpoints(arguments.inputs[0], arguments.best)


def main() -> None:
    arguments = command_line().parse_args()
    try:
        average_checkpoints(
            chosen(arguments),
            arguments.output,
            progress=lambda path: print(f"averaging {path}", flush=True),
        )
    except (CheckpointError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
