"""Whether memory stays flat while a model trains and translates for long.

    python benchmarks/soak.py --minutes 60 --arch dynamic_conv_tiny

runs fairseq-train for so many minutes, then fairseq-generate, on invented sentences, and prints
the resident memory of each over time. It ends with status 1 if the second half of a run needs
more than ``--allowed`` MB above the first half's most, a tenth of the time left out for starting.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import new_file, program

from fairseq_convattn.child_processes import exit_on_signals

ROOT = Path(__file__).resolve().parents[1]
PAGE_MB = 4096 / 2**20
LEAST_MINUTES = 0.5
FASTEST = 1000  # sentences a second
TAIL = 20  # lines of a failed command's output
NEW_LINE = "\n"
PLUGIN = ("--user-dir", str(ROOT / "fairseq_convattn"), "--cpu")
TRAINING = (
    *("--optimizer", "adam", "--lr", "0.001", "--max-tokens", "1000", "--max-epoch", "1000000"),
    *("--save-interval-updates", "200", "--keep-interval-updates", "1", "--no-epoch-checkpoints"),
    *("--update-epoch-batch-itr", "True", "--required-batch-size-multiple", "1"),
    *("--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "64"),
    *("--encoder-ffn-embed-dim", "128", "--max-source-positions", "1024"),
)


def sentences() -> Iterator[str]:
    """Sentences of 1 to 60 words, most of them short."""
    generator = random.Random(1)
    while True:
        words = generator.choices(
            "abcdefghijklmnopqrst", k=int(generator.expovariate(0.1)) % 60 + 1
        )
        yield " ".join(words)


def prepare(folder: Path, minutes: float) -> Path:
    """Prepare data for fairseq-train, and more than fairseq-generate can translate in the time."""
    print("preparing data", flush=True)
    source = sentences()
    arguments = ["-s", "src", "-t", "tgt", "--destdir", str(folder / "bin"), "--joined-dictionary"]
    for split, count in (("train", 2000), ("valid", 50), ("test", int(minutes * 60 * FASTEST))):
        lines = [next(source) for _ in range(count)]
        (folder / f"{split}.src").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.tgt").write_text("\n".join(x[::-1] for x in lines) + "\n")
        arguments += [f"--{split}pref", str(folder / split)]
    subprocess.run([program("fairseq-preprocess"), *arguments], check=True, capture_output=True)
    return folder / "bin"


def observe(command: list[str], log: Path, minutes: float) -> list[tuple[float, float]]:
    """Pairs of minutes and resident MB of a command until the time is over, which ends it.

    Raises:
        SystemExit: it ended by itself.
    """
    begun, seen = time.monotonic(), []
    with open(log, "a") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while (elapsed := (time.monotonic() - begun) / 60) < minutes:
            time.sleep(min(5, minutes * 60 / 50))
            if process.poll() is not None:
                print(*log.read_text().splitlines()[-TAIL:], sep="\n", file=sys.stderr)
                sys.exit(f"error: {command[0]} ended with status {process.returncode}")
            resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            seen.append((elapsed, resident * PAGE_MB))
    finally:
        process.terminate()
        process.wait()
    return seen


def growth(seen: list[tuple[float, float]]) -> float:
    """MB by which the second half's maximum exceeds the first half's, without the first tenth."""
    seen = seen[len(seen) // 10 :]
    half = len(seen) // 2
    return max(mb for _, mb in seen[half:]) - max(mb for _, mb in seen[:half])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="of each run (default: 60)")
    parser.add_argument("--arch", default="dynamic_conv_tiny")
    parser.add_argument("--allowed", type=float, default=20, help="MB (default: 20)")
    parser.add_argument("--output", type=new_file, help="JSON of the measurements")
    arguments = parser.parse_args()
    if arguments.minutes < LEAST_MINUTES:
        parser.error(f"--minutes must be at least {LEAST_MINUTES}")
    exit_on_signals()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, log = prepare(folder, arguments.minutes), folder / "log"
        train = [program("fairseq-train"), str(data), *PLUGIN, "--arch", arguments.arch, *TRAINING]
        train += ["--save-dir", str(folder / "run"), "--log-interval", "100"]
        results["training"] = observe(train, log, arguments.minutes)
        if not (folder / "run" / "checkpoint_last.pt").exists():
            sys.exit("error: the training has saved no checkpoint yet: raise --minutes")
        translate = [program("fairseq-generate"), str(data), *PLUGIN, "--beam", "4"]
        translate += ["--path", str(folder / "run" / "checkpoint_last.pt"), "--batch-size", "16"]
        translate += ["--max-len-b", "60", "--required-batch-size-multiple", "1"]
        results["generation"] = observe(translate, log, arguments.minutes)
        text = log.read_text()
        print(f"{arguments.arch}: {text.count(NEW_LINE + 'H-')} sentences translated")
    for name, seen in results.items():
        tenths = [f"{seen[len(seen) * n // 10][1]:.0f}" for n in range(10)] + [f"{seen[-1][1]:.0f}"]
        print(f"{name}: {' '.join(tenths)} MB, grown by {growth(seen):.1f} MB")
    if arguments.output:
        arguments.output.write_text(json.dumps(results))
    if max(map(growth, results.values())) > arguments.allowed:
        sys.exit("error: memory grows")


if __name__ == "__main__":
    main()
