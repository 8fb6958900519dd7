#!/usr/bin/env python
"""Whether a training of every mixer in half precision follows that in float32, on a GPU.

    python benchmarks/precisions.py data/multi30k/bin --device cuda

trains the tiny translator of every mixer for so many updates in every precision that fairseq
has, all from one seed, and prints the training losses, each the mean of the last updates. The
loss in half precision has to be within ``--band`` of float32's. On a CPU there are float32 and
--bf16 alone. Trainings run beside each other, so that their times mean nothing.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from measuring import Table, add_csv, add_device, positive, program, save

from fairseq_convattn.report.train_log import read_train_log

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = (
    *("lightweight_conv_tiny", "dynamic_conv_tiny", "attention_tiny", "composite_attention_tiny"),
    *("tisa_tiny", "short_conv_tiny"),
)
FLOAT32 = "float32"
PRECISIONS = {
    FLOAT32: (),
    "--fp16": ("--fp16",),
    "--bf16": ("--bf16",),
    "--amp": ("--amp",),
    "--memory-efficient-fp16": ("--memory-efficient-fp16",),
}
LAST = 25  # updates whose mean loss is compared
ON_CPUS = (FLOAT32, "--bf16")
FIELDS = ("architecture", "precision", "updates", "loss", "of_float32", "band", "within")
TABLE = Table(
    ("architecture", "<24"), ("precision", "<24"), ("loss", ">7.3f"), ("of fp32", ">8.4f")
)


def command(architecture: str, precision: str, arguments: argparse.Namespace) -> list[str]:
    """The training. Without dropout, whose choices would depend on the precision's kernels."""
    training = (
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.001"),
        *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "100", "--clip-norm", "25"),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
        *("--dropout", "0", "--attention-dropout", "0", "--seed", "1", "--num-workers", "0"),
        *("--max-tokens", "4096", "--required-batch-size-multiple", "1", "--no-save"),
        *("--update-epoch-batch-itr", "True", "--disable-validation", "--log-format", "json"),
        *("--max-update", str(arguments.updates), "--log-interval", str(LAST)),
    )
    device = ("--cpu",) if arguments.device == "cpu" else ()
    plugin = ("--user-dir", str(ROOT / "fairseq_convattn"), "--arch", architecture)
    data = (program("fairseq-train"), str(arguments.data))
    return [*data, *plugin, *training, *PRECISIONS[precision], *device]


def last_loss(architecture: str, precision: str, arguments: argparse.Namespace) -> float | None:
    """Of the training, in bits; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "train.log"
        with open(log, "w", encoding="utf-8") as output:
            trained = subprocess.run(
                command(architecture, precision, arguments), stdout=output, stderr=output
            )
        lines = log.read_text(encoding="utf-8").splitlines()
    losses = dict(read_train_log(lines).loss)
    if trained.returncode or arguments.updates not in losses:
        print(f"{architecture}, {precision}: failed", *lines[-10:], sep="\n", file=sys.stderr)
        return None
    print(f"{architecture}, {precision}: {losses[arguments.updates]:.3f}", file=sys.stderr)
    return losses[arguments.updates]


def rows(arguments: argparse.Namespace) -> Iterator[dict]:
    """Rows of ``FIELDS``."""
    precisions = ON_CPUS if arguments.device == "cpu" else PRECISIONS
    cases = list(product(arguments.architectures, precisions))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        losses = dict(
            zip(cases, pool.map(lambda case: last_loss(*case, arguments), cases), strict=True)
        )
    for (architecture, precision), loss in losses.items():
        expected = losses[architecture, FLOAT32]
        of_float32 = loss / expected if loss and expected else float("nan")
        within = "yes" if abs(of_float32 - 1) <= arguments.band else "no"
        figures = (arguments.updates, loss, of_float32, arguments.band, within)
        yield dict(zip(FIELDS, (architecture, precision, *figures), strict=True))


def _updates(text: str) -> int:
    if positive(text) % LAST:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of {LAST}")
    return int(text)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a folder that fairseq-preprocess wrote")
    parser.add_argument(
        "--architectures",
        nargs="+",
        default=list(ARCHITECTURES),
        metavar="NAME",
        help=f"default: {' '.join(ARCHITECTURES)}",
    )
    add_device(parser)
    of_each = f"of each training, a multiple of {LAST} (default: 200)"
    parser.add_argument("--updates", type=_updates, default=200, help=of_each)
    parser.add_argument("--jobs", type=positive, default=1, help="trainings at once (default: 1)")
    parser.add_argument(
        "--band", type=float, default=0.02, help="share of float32's loss (default: 0.02)"
    )
    add_csv(parser)
    return parser


def main() -> None:
    arguments = options().parse_args()
    found = list(rows(arguments))
    print(f"losses of the last {LAST} updates of {arguments.updates}, in bits\n{TABLE.header}")
    for row in found:
        print(TABLE.line(row["architecture"], row["precision"], row["loss"], row["of_float32"]))
    save(found, FIELDS, arguments.csv)
    if any(row["within"] == "no" for row in found):
        sys.exit(f"error: not every loss is within {arguments.band:.0%} of float32's")


if __name__ == "__main__":
    main()
