#!/usr/bin/env python
"""The convolutions as operations: time and memory beside fairseq's, attention's and two floors.

Computes (forward) and trains (forward and backward) dynamic and lightweight convolutions from
the logits of their taps, softmax included, with every implementation of this package, with
fairseq's modules, with a loop over taps as such and under torch.compile, beside causal
scaled_dot_product_attention from given queries, keys and values; and, as floors, a copy of the
tensor and as many multiply-adds as a product of large matrices. With --no-softmax the taps are
used as they are; then other packages' kernels are timed too, on a GPU that can import them:
causal-conv1d's of the lightweight convolution, with 2 to 4 taps per channel instead of per head,
and dynamic-conv1d's of the dynamic one (its headwise.py), each in its own layout.
Implementations are timed in turn, round after round, slow ones in the first three at least, with
memory that is freed kept for the next one; memory is measured once each with the fewest threads,
beyond inputs and outputs, on a CPU in a process of its own. On a GPU many calls are one CUDA graph,
so that what is timed are kernels. Without fairseq its modules are left out. Linux only.
"""

import argparse
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from measuring import (
    GRAPH,
    ROUNDS,
    Table,
    add_csv,
    add_device,
    add_names,
    add_numbers,
    add_repetitions,
    graph_of,
    isolation,
    keep_freed_memory,
    lengths,
    machine,
    milliseconds_in_turn,
    names_among,
    peak_memory,
    positives,
    quartiles,
    save,
    setting,
)

PASSES = ("forward", "training")
CONVOLUTIONS = ("dynamic", "lightweight")
FASTEST = {"cpu": "native", "cuda": "triton"}  # of ours
OURS = (*FASTEST.values(), "tiled", "reference")
FAIRSEQ = ("fairseq", "fairseq unfolded")
LIBRARIES = {"causal-conv1d": "causal_conv1d", "dynamic-conv1d": "headwise"}  # their modules
BASELINES = (*FAIRSEQ, *LIBRARIES, "loop", "compiled loop", "attention")
FLOORS = ("copy", "product")
IMPLEMENTATIONS = (*OURS, *BASELINES, *FLOORS)
FIELDS = (
    *("device", "dtype", "pass", "threads", "convolution", "kernel_size", "tokens"),
    *("implementation", "milliseconds", "lower_quartile", "upper_quartile", "memory_MiB"),
)
MATRIX = {"cpu": 1024, "cuda": 8192}  # rows and columns of the product
ALL_THREADS = sorted({1, os.cpu_count()})


class Problem(NamedTuple):
    """The problem's sizes; ``tokens`` per sentence."""

    convolution: str
    kernel_size: int
    tokens: int
    batch: int
    channels: int
    heads: int
    dtype: str
    threads: int
    device: str = "cpu"
    softmax: bool = True

    @property
    def taps(self) -> tuple[int, ...]:
        shared = self.heads, self.kernel_size
        return shared if self.convolution == "lightweight" else (self.tokens, self.batch, *shared)


def operation(name: str, problem: Problem) -> tuple[Callable, list]:
    """The implementation as a function, and its input tensors."""
    like = {"dtype": getattr(torch, problem.dtype), "device": problem.device}
    torch.manual_seed(1)
    x = torch.randn(problem.tokens, problem.batch, problem.channels, **like)
    logits = torch.randn(problem.taps, **like)
    if name in OURS:
        return _ours(name, problem), [x, logits]
    if name in FAIRSEQ:
        return _fairseqs(problem, unfold=name != "fairseq"), [x, logits]
    if name in LIBRARIES:
        return _librarys(name, x, logits)
    loop = _loop if problem.softmax else _loop_over_taps
    if name == "loop":
        return loop, [x, logits]
    if name == "compiled loop":
        torch.compiler.reset()  # it compiles a function for eight shapes, then no more
        return torch.compile(loop, dynamic=False), [x, logits]
    if name == "attention":
        head_dim = problem.channels // problem.heads
        shape = problem.batch, problem.heads, problem.tokens, head_dim
        return _attention, [torch.randn(shape, **like) for _ in range(3)]
    if name == "copy":
        return torch.clone, [x]
    side = MATRIX[problem.device]
    return torch.mm, [torch.randn(side, side, **like) for _ in range(2)]


def _ours(name: str, problem: Problem) -> Callable:
    from fairseq_convattn.ops import dynamic_conv, lightweight_conv

    convolution = dynamic_conv if problem.convolution == "dynamic" else lightweight_conv
    softmax = problem.softmax
    return lambda x, logits: convolution(x, logits, causal=True, softmax=softmax, impl=name)


def _librarys(name: str, x, taps) -> tuple[Callable, list]:
    """Another package's convolution, and the same inputs in its layout."""
    if name == "causal-conv1d":
        from causal_conv1d import causal_conv1d_fn

        of_channels = taps.repeat_interleave(x.size(2) // taps.size(0), 0)
        return causal_conv1d_fn, [x.permute(1, 2, 0).contiguous(), of_channels]
    from headwise import headwise_dynamic_convolution

    # its first tap is the position's own
    batch_first = (tensor.transpose(0, 1).contiguous() for tensor in (x, taps.flip(-1)))
    return headwise_dynamic_convolution, list(batch_first)


def computes(name: str, problem: Problem) -> bool:
    """Whether an implementation has this convolution."""
    if name == "causal-conv1d":
        few = problem.kernel_size in (2, 3, 4)
        return problem.convolution == "lightweight" and few and not problem.softmax
    if name == "dynamic-conv1d":
        return problem.convolution == "dynamic" and not problem.softmax
    return True


def _fairseqs(problem: Problem, unfold: bool) -> Callable:
    """fairseq's module with the logits given, instead of parameters or predicted."""
    from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
    from fairseq.modules.lightweight_convolution import LightweightConv1dTBC

    options = {
        "kernel_size": problem.kernel_size,
        "padding_l": problem.kernel_size - 1,
        "num_heads": problem.heads,
        "weight_softmax": problem.softmax,
    }
    if problem.convolution == "dynamic":
        module = DynamicConv1dTBC(problem.channels, **options)

        class Given(torch.nn.Module):
            out_features = problem.heads * problem.kernel_size

            def forward(self, query):
                return self.logits.flatten(2)

        module.weight_linear = given = Given()

        def compute(x, logits):
            given.logits = logits
            return module(x, unfold=unfold)
    else:
        module = LightweightConv1dTBC(problem.channels, **options)
        del module.weight

        def compute(x, logits):
            module.weight = logits.unsqueeze(1)
            y = module(x, unfold=unfold)
            del module.weight  # a reference to the graph would outlive its capture
            return y

    return compute


def _loop(x, logits):
    return _loop_over_taps(x, logits.softmax(-1))


def _loop_over_taps(x, taps):
    kernel_size, length = taps.size(-1), x.size(0)
    padded = F.pad(x, (0, 0, 0, 0, kernel_size - 1, 0)).unflatten(2, (taps.size(-2), -1))
    y = padded[:length] * taps[..., :1]
    for k in range(1, kernel_size):
        y = y + padded[k : k + length] * taps[..., k : k + 1]
    return y.flatten(2)


def _attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def step(name: str, which: str, problem: Problem) -> Callable[[], None]:
    """A function that runs forward, or forward and backward, once."""
    compute, tensors = operation(name, problem)
    if which == "forward":

        def forward() -> None:
            with torch.no_grad():
                compute(*tensors)

        return forward
    for tensor in tensors:
        tensor.requires_grad_()
    grad = torch.randn_like(compute(*tensors))
    return lambda: torch.autograd.grad(compute(*tensors), tensors, grad)


def measure_memory(which: str, name: str, problem: Problem, results) -> None:
    """Put the MiB at the peak, beyond those of inputs and outputs, into ``results``."""
    torch.set_num_threads(problem.threads)
    # warm-up: libraries load code and keep memory
    step(name, which, problem._replace(tokens=2, batch=1))()
    compute, tensors = operation(name, problem)
    once = step(name, which, problem)
    if problem.device == "cuda" or name == "compiled loop":
        once()  # what is compiled
    taken = peak_memory(problem.device, once)
    outputs = compute(*tensors).nbytes
    if which == "training":
        outputs += sum(tensor.nbytes for tensor in tensors)
    results.put(max(0.0, taken - outputs / 2**20))


def floor(name: str, milliseconds: float, which: str, problem: Problem) -> float:
    """A copy's or a product's time, scaled to the operation's multiply-adds."""
    if name != "product":
        return milliseconds
    passes = 1 if which == "forward" else 3
    of_product = MATRIX[problem.device] ** 3 * passes  # training takes two more products
    mine = problem.tokens * problem.batch * problem.channels * problem.kernel_size * passes
    return milliseconds * mine / of_product


def measure(
    which: str, problem: Problem, names: list[str], repetitions: int, with_memory: bool
) -> Iterator[dict[str, str | int | float]]:
    """Rows of ``FIELDS``."""
    torch.set_num_threads(problem.threads)
    steps, calls = (step(name, which, problem) for name in names), 1
    if problem.device == "cuda":
        steps, calls = map(graph_of, steps), GRAPH
    found = milliseconds_in_turn(steps, repetitions)
    for name, times in zip(names, found, strict=True):
        times = [floor(name, each / calls, which, problem) for each in times]
        lower, median, upper = quartiles(times)
        memory = None
        if with_memory and name not in FLOORS:
            memory = isolation(problem.device)(measure_memory, which, name, problem)
        where = (problem.device, problem.dtype, which, problem.threads)
        shape = (problem.convolution, problem.kernel_size, problem.tokens)
        figures = (name, median, lower, upper, memory)
        yield dict(zip(FIELDS, (*where, *shape, *figures), strict=True))


TABLE = Table(
    *(("pass", "<8"), ("threads", ">7"), ("", "<11"), ("taps", ">4")),
    *(("tokens", ">6,"), ("implementation", "<16"), ("ms", ">9"), ("quartiles", ">17")),
    *(("MiB", ">7.1f"), ("x ours", ">8.2f"), ("of product", ">10.0%"), ("x copy", ">6.2f")),
)


def lines(rows: list[dict]) -> Iterator[str]:
    """Printed lines for the rows of one problem, with ratios."""
    median = {row["implementation"]: row["milliseconds"] for row in rows}
    for row in rows:
        name, took = row["implementation"], row["milliseconds"]
        digits = 2 if took >= 1 else 4
        spread = f"{row['lower_quartile']:.{digits}f}..{row['upper_quartile']:.{digits}f}"
        ours = next((median[name] for name in FASTEST.values() if name in median), None)
        yield TABLE.line(
            *(row[field] for field in ("pass", "threads", "convolution", "kernel_size", "tokens")),
            *(name, f"{took:.{digits}f}", spread, row["memory_MiB"], took / ours if ours else None),
            median["product"] / took if "product" in median else None,
            took / median["copy"] if "copy" in median else None,
        )


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add_names(parser, "--passes", PASSES)
    add_names(parser, "--convolutions", CONVOLUTIONS)
    parser.add_argument(
        "--implementations",
        type=names_among(IMPLEMENTATIONS),
        metavar="NAME,...",
        help=f"among {','.join(IMPLEMENTATIONS)} (default: all that the device has)",
    )
    add_device(parser)
    parser.add_argument(
        "--kernel-sizes", type=positives, default=[31, 15, 7, 3], help="default: 31,15,7,3"
    )
    parser.add_argument(
        "--tokens",
        type=lengths,
        default=[16, 64, 128, 512, 2048, 4096],
        help="lengths of the sentences (default: 16,64,128,512,2048,4096)",
    )
    add_numbers(
        parser,
        ("--all-tokens", 2048, "of all sentences together: the batch is this divided by --tokens"),
        ("--channels", 1024, "in all heads"),
        ("--heads", 16, "that divide the channels"),
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="default: float32",
    )
    parser.add_argument(
        "--no-softmax", dest="softmax", action="store_false", help="use the taps as they are"
    )
    parser.add_argument(
        "--threads",
        type=positives,
        help=f"of a CPU (default: one and all, {','.join(map(str, ALL_THREADS))})",
    )
    add_repetitions(parser)
    add_csv(parser)
    return parser


def _problems(arguments: argparse.Namespace) -> Iterator[tuple[str, Problem]]:
    """Pairs of pass and problem, ordered by length."""
    axes = (arguments.threads, arguments.convolutions, arguments.kernel_sizes, arguments.tokens)
    for threads, convolution, kernel_size, tokens, which in itertools.product(
        *axes, arguments.passes
    ):
        batch = max(1, arguments.all_tokens // tokens)
        shape = arguments.channels, arguments.heads, arguments.dtype, threads, arguments.device
        yield which, Problem(convolution, kernel_size, tokens, batch, *shape, arguments.softmax)


def _available(device: str, dtype: str) -> list[str]:
    """The implementations that can run on this device, in their order."""
    absent = {name for other, name in FASTEST.items() if other != device}
    if device == "cpu" and dtype == "float16":
        absent.add("native")
    if not importlib.util.find_spec("fairseq"):
        absent |= set(FAIRSEQ)
    if not importlib.util.find_spec("triton"):
        absent.add("triton")
    for name, module in LIBRARIES.items():
        if device == "cpu" or not importlib.util.find_spec(module):
            absent.add(name)
    return [name for name in IMPLEMENTATIONS if name not in absent]


def _complete(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Complete the arguments for the device, and refuse what it does not support."""
    from fairseq_convattn.ops import native

    on_gpu = arguments.device == "cuda"
    arguments.threads = arguments.threads or ([1] if on_gpu else ALL_THREADS)
    available = _available(arguments.device, arguments.dtype)
    for name in arguments.implementations or ():
        if name in LIBRARIES and not importlib.util.find_spec(LIBRARIES[name]):
            parser.error(f"--implementations: {name} is not installed")
        if name not in available:
            parser.error(f"--implementations: {name} cannot compute {arguments.dtype} here")
        if not any(computes(name, problem) for _, problem in _problems(arguments)):
            parser.error(f"--implementations: {name} has none of these convolutions")
    arguments.implementations = arguments.implementations or available
    if not on_gpu and "native" in arguments.implementations and not native.is_built():
        parser.error(f"the native kernels were not compiled: {native.BUILD}")


def _machine(device: str) -> str:
    from fairseq_convattn.ops import native

    if device == "cuda":
        return machine(device)
    kernels = native.instructions() if native.is_built() else "not compiled"
    return f"{machine(device)}, native kernels: {kernels}"


def main() -> None:
    parser = _options()
    arguments = parser.parse_args()
    if arguments.channels % arguments.heads:
        parser.error(f"{arguments.heads} heads do not divide {arguments.channels} channels")
    _complete(parser, arguments)
    keep_freed_memory()
    print(
        f"{setting(_machine(arguments.device))}; {arguments.channels} channels, "
        f"{arguments.heads} heads, {arguments.dtype}, causal, "
        f"{'with' if arguments.softmax else 'without'} softmax, {arguments.all_tokens:,} tokens in "
        f"all; median and quartiles of {arguments.repetitions} rounds, {ROUNDS}; memory beyond "
        f"inputs and outputs; of product: share of the rate of a matrix product\n\n{TABLE.header}",
        flush=True,
    )
    rows = []
    problems = list(_problems(arguments))
    start = time.monotonic()
    for done, (which, problem) in enumerate(problems, start=1):
        with_memory = problem.threads == min(arguments.threads)
        names = [name for name in arguments.implementations if computes(name, problem)]
        mine = list(measure(which, problem, names, arguments.repetitions, with_memory))
        print(*lines(mine), sep="\n", flush=True)
        rows += mine
        save(rows, FIELDS, arguments.csv)
        left = (time.monotonic() - start) / done * (len(problems) - done) / 60
        print(f"{done} of {len(problems)}, about {left:.0f} min left", file=sys.stderr)


if __name__ == "__main__":
    main()
