"""What the benchmarks share: measuring time and memory, their options, and what they print."""

import argparse
import csv
import ctypes
import importlib.util
import logging
import multiprocessing
import os
import platform
import queue
import re
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

# measure this checkout, not an installed package
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fairseq_convattn.command_lines import whole_number  # noqa: E402

logging.basicConfig(level=logging.WARNING, force=True)  # fairseq sets it to DEBUG

SECONDS = 0.02  # minimum length of one measurement
LONG = 2.0  # seconds that all rounds of a slow step take, unless FEW take longer
FEW = 3
GRAPH = 20  # calls


def keep_freed_memory() -> None:
    """Make the C library keep freed memory. Otherwise the system zeroes the pages of every large
    tensor anew, which takes longer than a convolution."""
    most_by_mmap, trim_threshold = -4, -1
    library = ctypes.CDLL(None)
    library.mallopt(most_by_mmap, 0)
    library.mallopt(trim_threshold, 2**31 - 1)


def milliseconds_in_turn(
    steps: Iterable[Callable[[], None]],
    repetitions: int,
    clock: Callable[[], float] | None = None,
) -> list[list[float]]:
    """Milliseconds of every repetition of every step.

    Steps take turns, so that disturbances affect all alike. Slow steps take part in the first
    rounds only. ``clock`` returns seconds; None: wall time.
    """
    functions = list(steps)
    for step in functions:
        step()  # what is allocated or compiled once
    seconds = [_seconds(step, 1, clock) for step in functions]
    calls = [max(1, round(SECONDS / each)) for each in seconds]
    rounds = [
        repetitions if n > 1 else max(FEW, int(LONG / t))
        for n, t in zip(calls, seconds, strict=True)
    ]
    found: list[list[float]] = [[] for _ in functions]
    for n in range(repetitions):
        for i, step in enumerate(functions):
            if n < rounds[i]:
                found[i].append(1e3 * _seconds(step, calls[i], clock))
    return found


def graph_of(once: Callable[[], None]) -> Callable[[], None]:
    """A function that replays ``GRAPH`` calls as a CUDA graph, without the time of Python and
    launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        once()  # what is allocated or compiled once
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH):
            once()

    def replay(inputs_of=once) -> None:  # a graph alone would not keep its inputs
        graph.replay()
        torch.cuda.synchronize()

    return replay


ROUNDS = f"of slow implementations as many as take {LONG:.0f} seconds, or {FEW}"


def _seconds(step: Callable[[], None], calls: int, clock: Callable[[], float] | None) -> float:
    clock = clock or time.perf_counter
    start = clock()
    for _ in range(calls):
        step()
    return (clock() - start) / calls


def quartiles(times: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile."""
    return statistics.quantiles(times, n=4, method="inclusive")


def program(name: str) -> str:
    """The path of one of fairseq's programs, preferably from this Python's environment;
    ``pip install --target`` puts it into a folder beside the package."""
    fairseq = importlib.util.find_spec("fairseq")
    beside = [Path(fairseq.origin).parents[1] / "bin"] if fairseq and fairseq.origin else []
    folders = [Path(sys.executable).parent, os.environ.get("PATH", ""), *beside]
    here = os.pathsep.join(map(str, folders))
    return shutil.which(name, path=here) or sys.exit(f"error: {name} is not installed")


def processor() -> str:
    """The CPU's name."""
    from fairseq_convattn.recipes.devices import processor_name

    return processor_name()


def machine(device: str) -> str:
    """The CPU, or the GPU with the versions that matter there."""
    if device != "cuda":
        return processor()
    name = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    if not importlib.util.find_spec("triton"):
        return name
    import triton

    return f"{name}, Triton {triton.__version__}"


def setting(device: str) -> str:
    """The command, the device and the versions."""
    python, command = platform.python_version(), shlex.join(["python", *sys.argv])
    return f"{command}\n{device}; Python {python}, torch {torch.__version__}"


def process_memory(field: str) -> float:
    """A line of /proc/self/status, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024


def peak_memory(device: str, once: Callable[[], object]) -> float:
    """Peak memory of a call in MiB, beyond the memory in use before it."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = process_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    once()
    return process_memory("VmHWM") - before


def in_own_process(measure_one: Callable, *arguments) -> tuple[float, float] | None:
    """Run ``measure_one`` in a new process; returns what it puts into its last argument, a
    queue."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fairseq.modules", "torch._dynamo"])
    results = context.SimpleQueue()
    process = context.Process(target=measure_one, args=(*arguments, results))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"error: measuring {arguments[:3]} failed, see above")
    return results.get()


def in_this_process(measure_one: Callable, *arguments) -> tuple[float, float] | None:
    """As :func:`in_own_process`, without the seconds that a process takes to begin."""
    results: queue.SimpleQueue = queue.SimpleQueue()
    measure_one(*arguments, results)
    return results.get()


def isolation(device: str) -> Callable:
    """How memory is measured: PyTorch counts a GPU's exactly, a CPU's is the whole process's."""
    return in_this_process if device == "cuda" else in_own_process


def names_among(options: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in options]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(options)}")
        return [*dict.fromkeys(names)]

    return parse


positive = whole_number(1)


def positives(text: str) -> list[int]:
    """An argparse type: numbers between commas."""
    return [positive(number) for number in text.split(",")]


def add_names(parser: argparse.ArgumentParser, option: str, names: Iterable[str]) -> None:
    """An option for some names, by default all."""
    every = tuple(names)
    parser.add_argument(
        option,
        type=names_among(every),
        default=list(every),
        metavar="NAME,...",
        help=f"default: {','.join(every)}",
    )


def add_numbers(parser: argparse.ArgumentParser, *options: tuple[str, int, str]) -> None:
    """Options for whole numbers: name, default and, in words, what they are."""
    for option, default, what in options:
        help_text = f"{what} (default: {default:,})"
        parser.add_argument(option, type=positive, default=default, help=help_text)


def device(name: str) -> str:
    """An argparse type: a device that is there."""
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("PyTorch sees no GPU")
    return name


def add_device(parser: argparse.ArgumentParser, default: str = "cpu", more: str = "") -> None:
    help_text = f"default: {default}{more}"
    parser.add_argument(
        "--device", type=device, choices=("cpu", "cuda"), default=default, help=help_text
    )


def several(text: str) -> int:
    """An argparse type: as :func:`positive`, and more than one."""
    if positive(text) < 2:
        raise argparse.ArgumentTypeError("a spread needs two or more")
    return int(text)


def add_repetitions(parser: argparse.ArgumentParser) -> None:
    help_text = "rounds, of which the median (default: 10)"
    parser.add_argument("--repetitions", type=several, default=10, help=help_text)


def lengths(text: str) -> list[int]:
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) <= 2:
        raise argparse.ArgumentTypeError(f"{min(numbers)} tokens are too few")
    return numbers


def new_file(text: str) -> Path:
    path = Path(text)
    if path.exists() or not path.parent.is_dir():
        why = "is there already" if path.exists() else "has no folder"
        raise argparse.ArgumentTypeError(f"{path} {why}")
    return path


def add_csv(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", type=new_file, metavar="FILE", help="also write the figures there")


class Table:
    """Lines of a printed table.

    Args:
        columns: the head of each, and the format of its cells with alignment and width: ``>9.2f``.
    """

    def __init__(self, *columns: tuple[str, str]):
        forms = (re.fullmatch(r"([<>]\d+)(.*)", form).groups() for _, form in columns)
        self._places, self._forms = zip(*forms, strict=True)
        self.header = self._joined(head for head, _ in columns)

    def line(self, *cells: object) -> str:
        """Of the first columns. None is an empty cell, a tuple a range."""
        return self._joined(map(_shown, cells, self._forms))

    def _joined(self, cells: Iterable[str]) -> str:
        return "  ".join(map(format, cells, self._places))


def _shown(cell: object, form: str) -> str:
    if isinstance(cell, tuple):
        return "..".join(format(number, form) for number in cell)
    return "" if cell is None else format(cell, form)


def save(rows: list[dict], fields: Sequence[str], path: Path | None) -> None:
    """Write rows as CSV, if a file is given, completely or not at all."""
    if path:
        partial = path.with_name(f"{path.name}.partial")
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(path)
