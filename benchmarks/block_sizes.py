#!/usr/bin/env python
"""Time the convolutions' Triton kernels on a GPU with other block sizes than they have.

For each operation and pass it times the block sizes in use (the row "in use"), then others; those
that a kernel cannot have are named and left out. Inputs are random, convolutions causal: dynamic
and lightweight ones with softmax, and without of 3 and 4 taps; short ones with four taps, static
ones also with 17, and half as many channels. All kernels are compiled first, side by side. Many
calls are one CUDA graph.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch
from measuring import (
    GRAPH,
    Table,
    add_csv,
    add_device,
    add_names,
    add_numbers,
    add_repetitions,
    graph_of,
    machine,
    milliseconds_in_turn,
    save,
    setting,
)

from fairseq_convattn.ops.convolution import triton_launch as convolution
from fairseq_convattn.ops.short_convolution import triton_headwise as headwise
from fairseq_convattn.ops.short_convolution import triton_launch as low_rank

FIELDS = ("operation", "taps", "pass", "blocks", "us")
TABLE = Table(
    *(("operation", "<26"), ("taps", ">4"), ("pass", "<8"), ("blocks", "<58"), ("us", ">7.1f"))
)
SHORT_TAPS, MANY_STATIC_TAPS = 4, 17


class Operation(NamedTuple):
    """One pass, the module whose block sizes it takes, and how: values of the module's names for
    every candidate, by what they are called. ``compute`` prepares the pass and returns it."""

    name: str
    taps: int
    which: str
    compute: Callable[[], Callable]
    module: object
    candidates: dict[str, dict[str, object]]


@contextlib.contextmanager
def replaced(module, values: dict[str, object]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def convolutions(options: argparse.Namespace) -> Iterator[Operation]:
    for kind, taps in itertools.product(("dynamic", "lightweight"), (3, 7, 15, 31)):
        yield from _convolution(options, kind, taps, True)
    for kind, taps in itertools.product(("dynamic", "lightweight"), (3, 4)):
        yield from _convolution(options, kind, taps, False)


def _convolution(
    options: argparse.Namespace, kind: str, taps: int, softmax: bool
) -> Iterator[Operation]:
    x = random(options, options.channels)
    of_one = options.heads, taps
    weights = torch.randn(of_one if kind == "lightweight" else (*x.shape[:2], *of_one)).to(x)
    given = x, weights, None, len(x), taps - 1, softmax, 1.0

    def backward() -> Callable:
        _, lse = convolution._forward(*given)
        return lambda: convolution._backward(x, lse, *given, [True, True])

    name = kind if softmax else f"{kind}, no softmax"
    for which, compute in (("forward", lambda: lambda: convolution._forward(*given)),
                           ("backward", backward)):  # fmt: skip
        yield Operation(name, taps, which, compute, convolution, _of_convolutions(which, taps))


def _of_convolutions(which: str, taps: int) -> dict[str, dict[str, object]]:
    name, found = f"_{which}_blocks", {"in use": {}}
    for rows, warps in ((16, 1), (16, 2), (32, 1), (32, 2), (32, 4), (64, 2), (64, 4)):
        blocks = convolution.Blocks(rows, 1, 64, warps)
        given = {name: _giving(blocks)}
        if which == "forward" or rows == convolution._padded(taps):
            banded = {"_multiplies_bands": lambda *_: True}
            found[f"bands, {rows} rows, {warps} warps"] = given | banded
        for run in (2, 4, 8) if taps < 8 and warps <= 2 else ():
            one_by_one = {"_multiplies_bands": lambda *_: False}
            one_by_one[name] = _giving(blocks._replace(run=run))
            found[f"taps, {rows} rows by {run}, {warps} warps"] = one_by_one
    return found


def _giving(blocks: object) -> Callable:
    return lambda *_: blocks


def static_ones(options: argparse.Namespace) -> Iterator[Operation]:
    for taps in (SHORT_TAPS, MANY_STATIC_TAPS):
        yield from _by_heads(options, "static", 0, taps)


def headwise_ones(options: argparse.Namespace) -> Iterator[Operation]:
    yield from _by_heads(options, "headwise", max(1, options.heads // 2), SHORT_TAPS)


def _by_heads(
    options: argparse.Namespace, kind: str, heads: int, count: int
) -> Iterator[Operation]:
    x = random(options, options.channels // 2)
    taps = torch.randn(*x.shape[:2], heads, count).to(x)
    static, place = torch.randn(x.size(2), count).to(x), (count - 1, count - 1)
    passes = {
        "forward": lambda: headwise._forward(x, taps, static, *place),
        "backward": lambda: headwise._backward(x, x, taps, static, *place, [True, heads > 0, True]),
    }
    for which, compute in passes.items():
        found = {"in use": {}}
        for blocks in _of_heads(which, count):
            found[_called(blocks)] = {f"_{which}_blocks": _giving(blocks)}
        yield Operation(kind, count, which, lambda c=compute: c, headwise, found)


def _of_heads(which: str, taps: int) -> Iterator[NamedTuple]:
    few = taps == SHORT_TAPS
    for run in (2, 3, 4, 8) if few else (4, 8, 16):
        blocks = headwise.Blocks(run, *((256, 1) if few else (128, 2)))
        if which == "forward":
            yield blocks
            continue
        for programs, stages, registers in itertools.product((1056, 1584), (1, 3), (None, 168)):
            yield blocks._replace(programs=programs, stages=stages, registers=registers)


def low_rank_ones(options: argparse.Namespace) -> Iterator[Operation]:
    x = random(options, options.channels // 2)
    z, up = torch.randn(*x.shape[:2], 16).to(x), torch.randn(16, SHORT_TAPS, x.size(2)).to(x)
    place = SHORT_TAPS - 1, SHORT_TAPS - 1
    sizes = list(itertools.product((16, 32), (2, 4), (2, 4), (2, 3)))
    passes = {"forward": ("x", None), "x": ("x", 0), "z": ("z", 1), "up": ("up", 2)}
    for which, (name, wanted) in passes.items():
        found = {"in use": {}}
        for size in sizes:
            for programs in (528, 1056) if name == "up" else (0,):
                blocks = low_rank.Blocks(*size, programs)
                found[_called(blocks)] = {"_blocks": _giving(low_rank.FEW | {name: blocks})}

        def compute(wanted=wanted) -> Callable:
            if wanted is None:
                return lambda: low_rank._forward(x, z, up, *place)
            gradients = [n == wanted for n in range(3)]
            return lambda: low_rank._backward(x, x, z, up, *place, gradients)

        yield Operation("low_rank", SHORT_TAPS, which, compute, low_rank, found)


def _called(blocks: NamedTuple) -> str:
    return ", ".join(f"{value} {name}" for name, value in blocks._asdict().items() if value)


def random(options: argparse.Namespace, channels: int) -> torch.Tensor:
    sentences = max(1, options.all_tokens // options.tokens)
    like = {"dtype": getattr(torch, options.dtype), "device": options.device}
    return torch.randn(options.tokens, sentences, channels, **like)


def measure(operation: Operation, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of ``FIELDS``."""
    on_gpu = options.device == "cuda"
    for blocks, values in operation.candidates.items():
        try:
            with replaced(operation.module, values):
                compute = operation.compute()
                step = graph_of(compute) if on_gpu else compute
                (found,) = milliseconds_in_turn([step], options.repetitions)
        except Exception as error:  # Triton's own: too few registers, too much shared memory
            print(f"{operation.name} {operation.which}, {blocks}: {type(error).__name__}")
            continue
        us = 1e3 * statistics.median(found) / (GRAPH if on_gpu else 1)
        row = operation.name, operation.taps, operation.which, blocks, round(us, 1)
        yield dict(zip(FIELDS, row, strict=True))


OPERATIONS = {
    "convolution": convolutions,
    "static": static_ones,
    "headwise": headwise_ones,
    "low_rank": low_rank_ones,
}


def every_operation(options: argparse.Namespace) -> Iterator[Operation]:
    for name in options.operations:
        yield from OPERATIONS[name](options)


def compile_share(options: argparse.Namespace, share: int, shares: int) -> None:
    """Run each ``shares``-th candidate once, so that Triton keeps its kernel on disk."""
    count = itertools.count()
    for operation in every_operation(options):
        for values in operation.candidates.values():
            if next(count) % shares == share:
                with contextlib.suppress(Exception), replaced(operation.module, values):
                    operation.compute()()


def compile_all(options: argparse.Namespace) -> None:
    jobs = os.cpu_count() or 1
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(compile_share, options, n, jobs) for n in range(jobs)]:
            done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_names(parser, "--operations", OPERATIONS)
    add_numbers(
        parser,
        ("--tokens", 1024, "of a sentence"),
        ("--all-tokens", 65_536, "of all sentences together"),
        ("--channels", 1024, "of the convolution; short ones have half as many"),
        ("--heads", 16, "likewise"),
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    interpreted = "; cpu: in Triton's interpreter, with TRITON_INTERPRET=1 in the environment"
    add_device(parser, "cuda", interpreted)
    add_repetitions(parser)
    add_csv(parser)
    options = parser.parse_args()
    if options.device == "cpu" and not os.environ.get("TRITON_INTERPRET"):
        parser.error("--device cpu needs TRITON_INTERPRET=1 in the environment")
    print(setting(machine(options.device)), TABLE.header, sep="\n\n")
    if options.device == "cuda":
        compile_all(options)
    rows: list[dict] = []
    for operation in every_operation(options):
        for row in measure(operation, options):
            rows.append(row)
            print(TABLE.line(*row.values()), flush=True)
            save(rows, FIELDS, options.csv)


if __name__ == "__main__":
    main()
