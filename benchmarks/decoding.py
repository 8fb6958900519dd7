#!/usr/bin/env python
"""Decoding speed of trained translators: sentences per second of fairseq-generate.

Translates a test set with every checkpoint in turn, round after round, each in a process of its
own; prints the median, its spread and the ratio to the first checkpoint.
"""

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from measuring import Table, add_csv, add_numbers, processor, program, save, setting

PLUGIN = Path(__file__).resolve().parents[1] / "fairseq_convattn"
FIELDS = ("checkpoint", "sentences_per_second", "least", "most", "x_first")
SPEED = re.compile(r"\(([\d.]+) sentences/s")


def sentences_per_second(checkpoint: Path, arguments: argparse.Namespace) -> float:
    command = [
        program("fairseq-generate"),
        *(arguments.data, "--user-dir", str(PLUGIN), "--path", str(checkpoint), "--quiet"),
        *("--gen-subset", arguments.gen_subset, "--beam", str(arguments.beam)),
        *("--batch-size", str(arguments.batch_size), "--required-batch-size-multiple", "1"),
        *(() if torch.cuda.is_available() else ("--cpu",)),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(arguments.threads),
        "PYTHONPATH": os.pathsep.join([str(PLUGIN.parent), os.environ.get("PYTHONPATH", "")]),
    }
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    printed = run.stdout + run.stderr
    if run.returncode or not SPEED.search(printed):
        sys.exit(f"error: {shlex.join(command)}\n{printed[-3000:]}")
    return float(SPEED.search(printed)[1])


def measure(arguments: argparse.Namespace) -> list[dict]:
    found: dict[Path, list[float]] = {path: [] for path in arguments.checkpoints}
    for number in range(arguments.repetitions):
        for path, speeds in found.items():
            speeds.append(sentences_per_second(path, arguments))
        print(f"round {number + 1} of {arguments.repetitions}", file=sys.stderr, flush=True)
    first = statistics.median(found[arguments.checkpoints[0]])
    rows = []
    for path, speeds in found.items():
        median = statistics.median(speeds)
        figures = (path, median, min(speeds), max(speeds), median / first)
        rows.append(dict(zip(FIELDS, figures, strict=True)))
    return rows


def _checkpoint(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        path = path / "checkpoints" / "average.pt"
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{path}: there is no such file")
    return path


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="binarised, as for fairseq-generate")
    parser.add_argument(
        "checkpoints",
        nargs="+",
        type=_checkpoint,
        metavar="CHECKPOINT",
        help="a file, or a recipe's run, whose averaged checkpoint is taken",
    )
    parser.add_argument("--gen-subset", default="test", help="default: test")
    add_numbers(
        parser,
        ("--beam", 5, "as fairseq-generate's"),
        ("--batch-size", 128, "sentences"),
        ("--repetitions", 5, "rounds, of which the median"),
        ("--threads", os.cpu_count(), "of every process"),
    )
    add_csv(parser)
    return parser


def main() -> None:
    arguments = _options().parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    print(
        f"{setting(f'{device}, {arguments.threads} threads')}; beam {arguments.beam}, "
        f"batches of {arguments.batch_size}; median of {arguments.repetitions} rounds\n",
        flush=True,
    )
    rows = measure(arguments)
    width = max(len(str(row["checkpoint"])) for row in rows)
    table = Table(
        *(("checkpoint", f"<{width}"), ("sentences/s", ">11.1f")),
        *(("least..most", ">15.1f"), ("x first", ">7.2f")),
    )
    print(table.header)
    for path, median, least, most, ratio in map(dict.values, rows):
        print(table.line(str(path), median, (least, most), ratio))
    save(rows, FIELDS, arguments.csv)


if __name__ == "__main__":
    main()
