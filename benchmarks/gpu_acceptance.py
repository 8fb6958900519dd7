#!/usr/bin/env python
"""All that is to be shown on a GPU, in runs of at most nine minutes.

Every step is a process of its own that is killed, with all that it started, at its limit. After
every step DIR/acceptance.json and DIR/acceptance.md are written anew, so that a run that is cut
leaves what it had. A run takes the steps, in order, whose limits fit into --seconds together; a
step takes twice its limit at most, from what earlier ones left over. Nine minutes hold the checks,
the operations and the whole models that the aims compare. The real training needs --source and
nine minutes of its own, and so do further comparisons. All of them are --seconds 1870, or several
runs with --only.
"""

import argparse
import csv
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from conv_ops import LIBRARIES
from gpu_aims import (
    ATTENTION_LENGTHS,
    CHANNELS,
    COMPOSITE_AIMS,
    HEADS,
    LENGTHS,
    SIZES,
    aims,
)
from measuring import positive

from fairseq_convattn.child_processes import exit_on_signals
from fairseq_convattn.markdown import Table, raw_table
from fairseq_convattn.report.train_log import read_train_log
from fairseq_convattn.run_records import read_json, write_json

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 540  # of a whole run
TOKENS = 65_536
TAIL = 30  # lines of a failed step's output
GRACE = 10.0  # seconds that a step has to end its commands
LONG_TESTS = "every_combination or (large_inputs and not same_bits)"  # compile thousands of kernels
TRAINING = 130  # seconds
AROUND_TRAINING = 130  # seconds to prepare, to start, to average, to decode and to score
SMOKE_TESTS = "triton and (large_logits or gradients_of_any_stride or one_gradient_alone)"
TRAINED = ("dynamic", "attention")
PASSED, FAILED, CUT, SKIPPED = "passed", "failed", "cut", "skipped"


class Benchmark(NamedTuple):
    """A script with its arguments on a GPU, and tiny ones for a smoke test, unless another step
    does for it; the rest is as in :class:`Step`."""

    name: str
    title: str
    limit: int
    needs: tuple[str, ...]
    command: str
    tiny: str = ""


def _listed(values: Iterable) -> str:
    return ",".join(map(str, values))


_OTHERS = "".join(f",{name}" for name in ("causal-conv1d",) if find_spec(LIBRARIES[name]))
_CONVOLUTIONS = (
    f"conv_ops --dtype bfloat16 --repetitions 5 --channels {CHANNELS} --heads {HEADS} "
    f"--all-tokens {TOKENS}"
)
_TINY_CONVOLUTIONS = (
    "conv_ops --channels 8 --heads 2 --tokens 8 --all-tokens 16 --threads 1 --repetitions 2"
)
_COMPOSITE = (
    f"composite_attention --dtype bfloat16 --causal --all-tokens {TOKENS} --heads {HEADS} "
    "--no-published --repetitions 5"
)
_TINY_COMPOSITE = (
    "composite_attention --causal --tokens 8 --batch 1 --heads 2 --head-dim 4 --threads 1 "
    "--repetitions 2 --terms content,fixed"
)
_MODELS = "end_to_end --updates 15 --batch-tokens 16384 --repetitions 1"
_TRANSLATORS = f"{_MODELS} --tasks translation --tokens 27 --shape wmt_en_de_big"
_LANGUAGE_MODELS = f"{_MODELS} --tasks lm --tokens"
_TINY_MODELS = (
    "end_to_end --models dynamic --updates 2 --batch-tokens 40 --sentences 2 --repetitions 1 "
    "--threads 1"
)
# The limits are about what an H200 took. Up to the trainings they are SECONDS together.
BENCHMARKS = (
    Benchmark("facts", "The device", 20, (), "gpu_checks facts", "gpu_checks facts"),
    Benchmark(
        *("mixers", "A training step beside float64 on the CPU", 40, ("fairseq",)),
        *("gpu_checks mixers", "gpu_checks mixers"),
    ),
    Benchmark(
        *("convolutions", "Dynamic convolutions", 45, ("triton",)),
        f"{_CONVOLUTIONS} --convolutions dynamic --kernel-sizes {_listed(SIZES)} "
        f"--tokens {_listed(LENGTHS)} --implementations triton,attention,copy",
        f"{_TINY_CONVOLUTIONS} --convolutions dynamic --kernel-sizes 3 "
        "--implementations tiled,copy,product",
    ),
    Benchmark(
        *("lightweight", "Lightweight convolutions", 45, ("triton",)),
        f"{_CONVOLUTIONS} --convolutions lightweight --kernel-sizes {_listed(SIZES)} "
        f"--tokens {_listed(LENGTHS)} --implementations triton,attention,copy",
    ),
    Benchmark(
        *("taps", "Convolutions without softmax", 27, ("triton",)),
        f"{_CONVOLUTIONS} --no-softmax --kernel-sizes 3,4 --tokens 4096 "
        f"--implementations triton,copy{_OTHERS}",
        f"{_TINY_CONVOLUTIONS} --no-softmax --convolutions lightweight --kernel-sizes 4 "
        "--passes forward --implementations tiled,copy",
    ),
    Benchmark(
        *("composite", "Composite attention", 33, ("triton",)),
        f"{_COMPOSITE} --tokens {_listed(ATTENTION_LENGTHS)} --terms {' '.join(COMPOSITE_AIMS)}",
        f"{_TINY_COMPOSITE} --passes training",
    ),
    Benchmark(
        *("translators", "Training translators", 100, ("fairseq",)),
        f"{_TRANSLATORS} --models dynamic,attention",
        f"{_TINY_MODELS} --tasks translation --tokens 27",
    ),
    Benchmark(
        *("decoding", "Beam search", 35, ("fairseq",)),
        "beam_search --without-graphs",
        "beam_search --architectures attention_tiny dynamic_conv_tiny --batch-size 2 --tokens 4 "
        "--types 50 --threads 1 --repetitions 2",
    ),
)
MORE_BENCHMARKS = (
    Benchmark(
        *("language-models", "Training language models", 80, ("fairseq",)),
        f"{_LANGUAGE_MODELS} 1024,8192 --models dynamic,attention",
        f"{_TINY_MODELS} --tasks lm --tokens 16",
    ),
    Benchmark(
        *("dropout", "Composite attention with dropout", 30, ("triton",)),
        f"{_COMPOSITE} --tokens 2048 --dropout 0.1 --terms content,fixed",
    ),
    Benchmark(
        *("short", "Short convolutions in attention", 50, ("triton", "fairseq")),
        "short_convolutions --dtype bfloat16 --batch 64",
        "short_convolutions --tokens 8 --batch 1 --threads 1 --repetitions 2",
    ),
    Benchmark(
        *("dynamic-conv1d", "Beside dynamic-conv1d", 240, ("triton", LIBRARIES["dynamic-conv1d"])),
        f"{_CONVOLUTIONS} --no-softmax --convolutions dynamic --kernel-sizes 3,4 --tokens 4096 "
        "--implementations triton,dynamic-conv1d,copy",
    ),
    Benchmark(
        *("more-translators", "Beside fairseq's translators", 130, ("fairseq",)),
        f"{_TRANSLATORS} --precision fp16 --models dynamic,lightweight,transformer,lightconv",
    ),
    Benchmark(
        *("more-decoding", "Beam search beside fairseq's translators", 60, ("fairseq",)),
        "beam_search --architectures dynamic_conv_wmt_en_de_big lightweight_conv_wmt_en_de_big "
        "transformer_wmt_en_de_big lightconv_wmt_en_de_big",
    ),
    Benchmark(
        *("more-language-models", "Beside fairseq's language models", 220, ("fairseq",)),
        f"{_LANGUAGE_MODELS} 1024,8192,4096 --precision fp16 "
        "--models dynamic,lightweight,transformer",
    ),
)


class Step(NamedTuple):
    """A command, its limit in seconds, the modules without which it is skipped, and how its rows
    are read: from its CSV, from what it printed, or from a recipe's folder."""

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
    """Numbers of tests by outcome, of a run that was cut so far, and the names of those that
    failed."""
    last = printed.strip().splitlines()[-1:] or [""]
    counts = re.findall(r"(\d+) (passed|failed|skipped|deselected|errors?)\b", last[0])
    if not counts:
        so_far = "".join(re.findall(r"^([.sxFE]+)(?: +\[ *\d+%\])?$", printed, re.M))
        outcomes = {"passed": ".", "failed": "F", "errors": "E", "skipped": "s"}
        found = ((so_far.count(letter), outcome) for outcome, letter in outcomes.items())
        counts = [(str(number), outcome) for number, outcome in found if number]
    rows = [{"tests": outcome, "number": number} for number, outcome in counts]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.M)
    return rows + [{"tests": name, "number": "failed"} for name in failed]


def rows_of_recipe(file: Path, printed: str) -> list[dict]:
    """The updates that a run of a recipe has trained, and the scores in its ``results.json``."""
    folder = file.with_suffix("")
    log, results = folder / "logs" / "train.log", folder / "results.json"
    if not log.exists():
        return []
    updates = read_train_log(log.read_text(encoding="utf-8").splitlines()).updates
    rows = [{"name": "updates", "score": updates}]
    for score in read_json(results)["scores"] if results.exists() else ():
        rows.append({name: score[name] for name in ("name", "score", "confidence")})
    return rows


def steps(arguments: argparse.Namespace) -> list[Step]:
    """The steps in order; a smoke test has those of equal making once."""
    smoke = arguments.smoke
    tests = Step(
        "tests",
        "Tests of the operations",
        195,
        ("triton", "pytest"),
        _tests(smoke),
        rows_of_pytest,
    )
    facts, *benchmarks = _steps(BENCHMARKS, arguments)
    trainings = (_training(mixer, arguments) for mixer in TRAINED[: 1 if smoke else None])
    more = _steps(MORE_BENCHMARKS, arguments)
    return [facts, tests, *benchmarks, *trainings, *more]


def _steps(benchmarks: Iterable[Benchmark], arguments: argparse.Namespace) -> Iterator[Step]:
    return (_step(each, arguments) for each in benchmarks if each.tiny or not arguments.smoke)


def _step(benchmark: Benchmark, arguments: argparse.Namespace) -> Step:
    name, title, limit, needs, real, tiny = benchmark
    script, *given = shlex.split(tiny if arguments.smoke else real)
    device = "cpu" if arguments.smoke else "cuda"
    where = ["--device", device, "--csv", str(arguments.output / f"{name}.csv")]
    command = [sys.executable, f"benchmarks/{script}.py", *given, *where]
    return Step(name, title, limit, ("torch", *needs), command, rows_of_csv)


def _tests(smoke: bool) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
    if smoke:
        return [*command, "tests/ops/test_convolution_kernels.py", "-k", SMOKE_TESTS]
    command += ["tests/ops", "-k", f"not ({LONG_TESTS})"]
    return [*command, "-n", "auto", "--dist", "worksteal"] if find_spec("xdist") else command


def _training(mixer: str, arguments: argparse.Namespace) -> Step:
    """Multi30k by the recipe, which ends after --training-seconds at the latest."""
    name, folder = f"multi30k-{mixer}", arguments.output
    command = [sys.executable, "-m", "fairseq_convattn.recipes", "multi30k", "--mixer", mixer]
    command += ["--output", str(folder / name), "--data", str(folder / "multi30k")]
    command += ["--source", str(arguments.source)] if arguments.source else []
    command += ["--smoke"] if arguments.smoke else []
    command += ["--", "--stop-time-hours", f"{arguments.training_seconds / 3600:.4f}"]
    limit = arguments.training_seconds + AROUND_TRAINING
    title = f"Multi30k by the recipe, {mixer}"
    return Step(name, title, limit, ("fairseq", "subword_nmt"), command, rows_of_recipe)


def why_skipped(step: Step, arguments: argparse.Namespace) -> str | None:
    absent = [name for name in step.needs if not find_spec(name)]
    if absent:
        return f"{absent[0]} is not installed"
    if step.read is rows_of_recipe and not (arguments.source or arguments.smoke):
        return "no --source"
    return None


def planned(chosen: list[Step], arguments: argparse.Namespace) -> dict[str, str | None]:
    """Why each step is skipped, by its name; None for those that fit into the time together."""
    left, found = arguments.seconds, {}
    for step in chosen:
        reason = why_skipped(step, arguments)
        if not reason and not arguments.smoke:
            if step.limit > left:
                reason = f"it may take {step.limit} s, {left} of --seconds were left"
            else:
                left -= step.limit
        found[step.name] = reason
    return found


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
    """End a process and all that it started; a recipe ends its own command, in another session."""
    try:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(GRACE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def table(rows: list[dict]) -> str:
    """A Markdown table, without empty columns and those that repeat the command."""
    kept = {field for row in rows for field, value in row.items() if value not in (None, "")}
    fields = [field for field in rows[0] if field in kept and field not in ("device", "threads")]
    cells = [[_shown(row.get(field)) for field in fields] for row in rows]
    return raw_table(Table(fields, cells, ())) + "\n"


def _shown(value) -> str:
    """Four digits of a number with a decimal point, or more."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "" if value is None else str(value).replace("|", "\\|")
    if "." not in str(value):
        return str(value)
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:#.4g}"


def page(report: dict) -> str:
    """The report in Markdown, of everything measured so far."""
    facts = {
        row["fact"]: row["value"]
        for record in report["steps"]
        if record["name"] == "facts"
        for row in record["rows"]
    }
    parts = [f"# On {facts.get('device', 'a GPU')}\n", f"Measured {report['started']}.\n"]
    if report["smoke"]:
        parts.append("A smoke test on a CPU: its figures mean nothing.\n")
    for record in report["steps"]:
        parts.append(f"## {record['title']}\n")
        if record["status"] == SKIPPED:
            parts.append(f"Skipped: {record['reason']}.\n")
            continue
        if record["status"] != PASSED:
            how = "cut at its limit" if record["status"] == CUT else "failed"
            parts.append(f"**{how.capitalize()}** after {record['seconds']:.0f} seconds.\n")
        if record["rows"]:
            parts.append(table(record["rows"]))
        parts.append(f"<!-- skip: needs a GPU -->\n```bash\n{record['command']}\n```\n")
    parts += ["## Aims\n", table(aims(report["steps"]))]
    return "\n".join(parts)


def write(report: dict, folder: Path) -> None:
    write_json(report, folder / "acceptance.json")
    partial = folder / "acceptance.md.partial"
    partial.write_text(page(report), encoding="utf-8")
    os.replace(partial, folder / "acceptance.md")


def carry_out(chosen: list[Step], arguments: argparse.Namespace, report: dict) -> None:
    """Run the steps one after the other, and write the report after each."""
    end = time.monotonic() + arguments.seconds
    skipped = planned(chosen, arguments)
    to_come = sum(step.limit for step in chosen if not skipped[step.name])
    for step in chosen:
        record = {
            "name": step.name,
            "title": step.title,
            "command": _shown_command(step, arguments),
        }
        if reason := skipped[step.name]:
            record |= {"status": SKIPPED, "reason": reason, "rows": []}
        else:
            to_come -= step.limit
            left = end - time.monotonic()
            limit = left if arguments.smoke else min(2 * step.limit, left - to_come)
            record |= run(step, arguments.output, limit)
        report["steps"].append(record)
        write(report, arguments.output)
        why = record.get("reason") or f"{record['seconds']:.0f} s"
        print(f"{step.name:22}{record['status']:8}  {why}", flush=True)


def _shown_command(step: Step, arguments: argparse.Namespace) -> str:
    """The command without paths of this machine."""
    shown = shlex.join(["python", *step.command[1:]])
    return shown.replace(str(arguments.output), "DIR").replace(str(arguments.source), "SOURCE")


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    folder = "a folder that is not there yet (default: %(default)s)"
    default = Path("outputs/gpu_acceptance")
    parser.add_argument("--output", type=Path, default=default, metavar="DIR", help=folder)
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone")
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="Multi30k, to train on; see docs/recipes.md"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=SECONDS,
        help=f"of the whole run (default: {SECONDS}, without the real training; it and facts take "
        f"{SECONDS} more, all steps 1870)",
    )
    parser.add_argument(
        "--training-seconds",
        type=positive,
        default=TRAINING,
        help=f"after which each real training ends (default: {TRAINING}); {AROUND_TRAINING} more "
        "are kept to prepare, decode and score",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="every step at a tiny size, on a CPU; proves nothing"
    )
    return parser


def main() -> None:
    parser = options()
    arguments = parser.parse_args()
    exit_on_signals()
    arguments.output = arguments.output.absolute()
    arguments.source = arguments.source and arguments.source.absolute()
    every = steps(arguments)
    names = [step.name for step in every]
    for name in arguments.only or []:
        if name not in names:
            parser.error(f"--only: {name!r} is none of {', '.join(names)}")
    if arguments.source and not arguments.source.is_dir():
        parser.error(f"--source: there is no folder {arguments.source}")
    if not (arguments.smoke or torch.cuda.is_available()):
        parser.error("PyTorch sees no GPU; --smoke runs on a CPU")
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
