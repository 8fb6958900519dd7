#!/usr/bin/env python
"""All that is to be shown on a GPU, by one command of at most nine minutes.

Every step is a process of its own that is killed, with all that it started, at its limit. After
every step DIR/acceptance.json and DIR/acceptance.md are written anew, so that a run that is cut
leaves what it had. First come the steps that need torch, triton and pytest alone; those that need
fairseq are skipped where it is absent, the training where no --source is given.
"""

import argparse
import csv
import importlib.util
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from measuring import positive

from fairseq_convattn.report.markdown import Table, raw_table
from fairseq_convattn.run_records import write_json

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 540  # of a whole run
CHANNELS, HEADS, TOKENS = 1024, 16, 65_536
TAIL = 30  # lines of a failed step's output
LONG_TESTS = "every_combination or (large_inputs and not same_bits)"  # compile thousands of kernels
SMOKE_TESTS = "triton and (large_logits or gradients_of_any_stride or one_gradient_alone)"
TRAINED = ("dynamic", "attention")
PASSED, FAILED, CUT, SKIPPED = "passed", "failed", "cut", "skipped"


class Step(NamedTuple):
    """A command, its limit in seconds, the modules without which it is skipped, and how its rows
    are read: from its CSV, or from what it printed."""

    name: str
    title: str
    limit: int
    needs: tuple[str, ...]
    command: list[str]
    read: Callable[[Path, str], list[dict]]


def rows_of_csv(file: Path, printed: str) -> list[dict]:
    if not file.exists():
        return []
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def rows_of_pytest(file: Path, printed: str) -> list[dict]:
    """Numbers of tests by outcome, and the names of those that failed."""
    last = printed.strip().splitlines()[-1:] or [""]
    counts = re.findall(r"(\d+) (passed|failed|skipped|deselected|errors?)\b", last[0])
    rows = [{"tests": outcome, "number": number} for number, outcome in counts]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.M)
    return rows + [{"tests": name, "number": "failed"} for name in failed]


def rows_of_recipe(file: Path, printed: str) -> list[dict]:
    """The scores in the ``results.json`` of a run."""
    results = file.with_suffix("") / "results.json"
    if not results.exists():
        return []
    scores = json.loads(results.read_text(encoding="utf-8"))["scores"]
    return [{name: score[name] for name in ("name", "score", "confidence")} for score in scores]


def steps(arguments: argparse.Namespace) -> list[Step]:
    """The steps in order; limits are about twice the expected time on an H200."""
    device = "cpu" if arguments.smoke else "cuda"
    smoke = arguments.smoke
    python, folder = sys.executable, arguments.output

    def benchmark(step: str, script: str, limit: int, needs: Iterable[str], real: str, tiny: str):
        name, _, title = step.partition(": ")
        given = shlex.split(tiny if smoke else real)
        where = ["--device", device, "--csv", str(folder / f"{name}.csv")]
        command = [python, f"benchmarks/{script}.py", *given, *where]
        return Step(name, title, limit, ("torch", *needs), command, rows_of_csv)

    tests = [python, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
    if smoke:
        tests += ["tests/ops/test_convolution_kernels.py", "-k", SMOKE_TESTS]
    else:
        tests += ["tests/ops", "-k", f"not ({LONG_TESTS})"]
        tests += ["-n", "8"] if importlib.util.find_spec("xdist") else []
    fairseq, big = ("fairseq",), "--shape wmt_en_de_big"
    few = "--updates 2 --batch-tokens 40 --sentences 2 --repetitions 1 --threads 1"
    many = "--updates 15 --batch-tokens 16384 --repetitions 1"
    found = [
        benchmark("facts: The device", "gpu_checks", 40, (), "facts", "facts"),
        Step("tests", "Tests of the operations", 120, ("triton", "pytest"), tests, rows_of_pytest),
        benchmark(
            "mixers: A training step beside float64 on the CPU", "gpu_checks", 60, fairseq,
            "mixers", "mixers",
        ),
        benchmark(
            "convolutions: Convolutions as operations", "conv_ops", 90, ("triton",),
            "--dtype bfloat16 --convolutions dynamic --kernel-sizes 3,7,15,31 --repetitions 5 "
            f"--channels {CHANNELS} --heads {HEADS} --tokens 256,1024,4096 --all-tokens {TOKENS} "
            "--implementations triton,attention,copy,product",
            "--convolutions dynamic --kernel-sizes 3 --channels 8 --heads 2 --tokens 8 "
            "--all-tokens 16 --threads 1 --repetitions 2 --implementations tiled,copy,product",
        ),
        benchmark(
            "composite: Composite attention", "composite_attention", 60, ("triton",),
            f"--dtype bfloat16 --causal --tokens 512,2048 --batch 16 --heads {HEADS} "
            "--repetitions 5 --terms content,fixed content,tisa content,fixed,query",
            "--causal --tokens 8 --batch 1 --heads 2 --head-dim 4 --threads 1 --repetitions 2 "
            "--terms content,fixed --passes forward",
        ),
        benchmark(
            "dropout: Composite attention with dropout", "composite_attention", 40, ("triton",),
            f"--dtype bfloat16 --causal --tokens 2048 --batch 16 --heads {HEADS} --dropout 0.1 "
            "--repetitions 5 --terms content,fixed",
            "--causal --tokens 8 --batch 1 --heads 2 --head-dim 4 --threads 1 --repetitions 2 "
            "--terms content,fixed --passes training --dropout 0.1",
        ),
        benchmark(
            "short: Short convolutions in attention", "short_convolutions", 40,
            ("triton", *fairseq), "--dtype bfloat16 --batch 64",
            "--tokens 8 --batch 1 --threads 1 --repetitions 2",
        ),
        benchmark(
            "translators: Training translators", "end_to_end", 120, fairseq,
            f"--tasks translation --tokens 27 --models dynamic,attention,transformer,lightconv "
            f"{big} {many}",
            f"--tasks translation --tokens 27 --models dynamic {few}",
        ),
        benchmark(
            "decoding: Decoding at beam 5", "end_to_end", 240, fairseq,
            f"--tasks generate --models dynamic,attention,transformer,lightconv {big} {many} "
            "--sentences 1024 --sentences-per-batch 128",
            f"--tasks generate --models dynamic --sentences-per-batch 2 {few}",
        ),
        benchmark(
            "language-models: Training language models", "end_to_end", 240, fairseq,
            "--tasks lm --tokens 1024,4096,8192 --models dynamic,attention,transformer "
            f"{many}",
            f"--tasks lm --tokens 16 --models dynamic {few}",
        ),
    ]  # fmt: skip
    for mixer in TRAINED:
        name = f"multi30k-{mixer}"
        command = [python, "-m", "fairseq_convattn.recipes", "multi30k", "--mixer", mixer]
        command += ["--output", str(folder / name), "--data", str(folder / "multi30k")]
        command += ["--source", str(arguments.source), *(["--smoke"] if smoke else [])]
        title = f"Multi30k by the recipe, {mixer}"
        found.append(Step(name, title, SECONDS, fairseq, command, rows_of_recipe))
    return found


def why_skipped(step: Step, arguments: argparse.Namespace) -> str | None:
    absent = [name for name in step.needs if not importlib.util.find_spec(name)]
    if absent:
        return f"{absent[0]} is not installed"
    if step.read is rows_of_recipe and not arguments.source:
        return "no --source"
    return None


def run(step: Step, folder: Path, limit: float) -> dict:
    """The step's record; its output goes to a log beside its figures."""
    log, start = folder / f"{step.name}.log", time.monotonic()
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            step.command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            cwd=ROOT, env={**threads, **os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        try:
            status = PASSED if process.wait(max(1.0, limit)) == 0 else FAILED
        except subprocess.TimeoutExpired:
            status = CUT
        finally:
            _kill(process)
    printed = log.read_text(encoding="utf-8", errors="replace")
    record = {
        "status": status,
        "seconds": round(time.monotonic() - start, 1),
        "rows": step.read(folder / f"{step.name}.csv", printed),
    }
    if status != PASSED:
        record["output"] = printed.splitlines()[-TAIL:]
    return record


def _kill(process: subprocess.Popen) -> None:
    """Kill a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def aims(records: list[dict]) -> list[dict]:
    """Shares of the memory floor that convolutions reach; every tensor of theirs passes once, as
    the copy's do, at the copy's rate."""
    rows = next((record["rows"] for record in records if record["name"] == "convolutions"), [])
    took = {
        (row["pass"], int(row["kernel_size"]), row["tokens"], row["implementation"]): float(
            row["milliseconds"]
        )
        for row in rows
    }
    found = []
    for (which, size, tokens, name), milliseconds in took.items():
        copy = took.get((which, size, tokens, "copy"))
        if name == "triton" and copy:
            channels, taps = (2, 1) if which == "forward" else (5, 3)
            floor = copy * (channels * CHANNELS + taps * HEADS * size) / (2 * CHANNELS)
            row = {"pass": which, "taps": size, "tokens": tokens}
            row["of the memory's rate"] = f"{floor / milliseconds:.0%}"
            found.append(row | {"aim": "70%" if which == "forward" else "60%"})
    return found


def table(rows: list[dict]) -> str:
    """A Markdown table, without empty columns and those that repeat the command."""
    kept = {field for row in rows for field, value in row.items() if value not in (None, "")}
    fields = [field for field in rows[0] if field in kept and field not in ("device", "threads")]
    cells = [[_shown(row.get(field)) for field in fields] for row in rows]
    return raw_table(Table(fields, cells, ())) + "\n"


def _shown(value) -> str:
    """Four digits of a number with a decimal point."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "" if value is None else str(value).replace("|", "\\|")
    if number.is_integer() or "." not in str(value):
        return str(value)
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def page(report: dict) -> str:
    """The report in Markdown, of everything measured so far."""
    facts = {
        row["fact"]: row["value"]
        for record in report["steps"]
        if record["name"] == "facts"
        for row in record["rows"]
    }
    parts = [f"## On {facts.get('device', 'a GPU')}\n", f"Measured {report['started']}.\n"]
    if report["smoke"]:
        parts.append("A smoke test on a CPU: its figures mean nothing.\n")
    for record in report["steps"]:
        parts.append(f"### {record['title']}\n")
        if record["status"] == SKIPPED:
            parts.append(f"Skipped: {record['reason']}.\n")
            continue
        if record["status"] != PASSED:
            how = "cut at its limit" if record["status"] == CUT else "failed"
            parts.append(f"**{how.capitalize()}** after {record['seconds']:.0f} seconds.\n")
        if record["rows"]:
            parts.append(table(record["rows"]))
        parts.append(f"<!-- skip: needs a GPU -->\n```bash\n{record['command']}\n```\n")
        if record["name"] == "convolutions" and (shares := aims(report["steps"])):
            parts.append(table(shares))
    return "\n".join(parts)


def write(report: dict, folder: Path) -> None:
    write_json(report, folder / "acceptance.json")
    partial = folder / "acceptance.md.partial"
    partial.write_text(page(report), encoding="utf-8")
    os.replace(partial, folder / "acceptance.md")


def carry_out(chosen: list[Step], arguments: argparse.Namespace, report: dict) -> None:
    """Run the steps one after the other, and write the report after each."""
    end = time.monotonic() + arguments.seconds
    for step in chosen:
        record = {
            "name": step.name,
            "title": step.title,
            "command": _shown_command(step, arguments),
        }
        left = end - time.monotonic()
        if reason := why_skipped(step, arguments) or (left < 1 and "no time was left"):
            record |= {"status": SKIPPED, "reason": reason, "rows": []}
        else:
            limit = left if arguments.smoke else min(step.limit, left)
            record |= run(step, arguments.output, limit)
        report["steps"].append(record)
        write(report, arguments.output)
        why = record.get("reason") or f"{record['seconds']:.0f} s"
        print(f"{step.name:20}{record['status']:8}  {why}", flush=True)


def _shown_command(step: Step, arguments: argparse.Namespace) -> str:
    """The command without paths of this machine."""
    shown = shlex.join(["python", *step.command[1:]])
    return shown.replace(str(arguments.output), "DIR").replace(str(arguments.source), "SOURCE")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    folder = "a folder that is not there yet (default: %(default)s)"
    default = Path("outputs/gpu_acceptance")
    parser.add_argument("--output", type=Path, default=default, metavar="DIR", help=folder)
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone")
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="Multi30k, to train on; see docs/recipes.md"
    )
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS, help=f"of the whole run (default: {SECONDS})"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="every step at a tiny size, on a CPU; proves nothing"
    )
    return parser


def main() -> None:
    parser = _options()
    arguments = parser.parse_args()
    arguments.output = arguments.output.absolute()
    arguments.source = arguments.source and arguments.source.absolute()
    every = steps(arguments)
    names = [step.name for step in every]
    for name in arguments.only or []:
        if name not in names:
            parser.error(f"--only: {name!r} is none of {', '.join(names)}")
    if arguments.source and not arguments.source.is_dir():
        parser.error(f"--source: there is no folder {arguments.source}")
    try:
        arguments.output.mkdir(parents=True)
    except FileExistsError:
        parser.error(f"--output: {arguments.output} is there already")
    if arguments.smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    report = {
        "command": shlex.join(["python", *sys.argv]),
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "python": platform.python_version(),
        "smoke": arguments.smoke,
        "steps": [],
    }
    chosen = [step for step in every if step.name in (arguments.only or names)]
    carry_out(chosen, arguments, report)
    print(f"written to {arguments.output}")
    if any(record["status"] in (FAILED, CUT) for record in report["steps"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
