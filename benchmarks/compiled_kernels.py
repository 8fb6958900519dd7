#!/usr/bin/env python
"""Compile the Triton kernels for GPUs that this machine need not have.

Compiles every kernel that is launched for the given sizes, with the assembler and disassembler
that come with Triton, and prints for each its blocks, what it takes of a multiprocessor, what its
instructions are, and how long it should run at least. Needs torch and triton alone.

The estimate is the largest of three times: of the operation's own bytes at the memory bandwidth
(each tensor once, which is the floor), of all instructions at the rate at which warps issue them,
and of all loads and stores, shared memory's included, at the rate of the caches nearest to the
multiprocessors. It leaves out latency, conflicts, how many cache lines a load touches, and the
tensor cores' own time. Loops are counted with as many rounds as a program has on average.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

os.environ.pop("TRITON_INTERPRET", None)  # which Triton reads when it is imported

import torch
import triton
from gpu_assembly import GPUS, estimate, instructions, mix
from measuring import Table, add_csv, add_names, add_numbers, positives, save
from torch import Tensor
from triton import knobs
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from fairseq_convattn.ops.attention import triton_launch as attention
from fairseq_convattn.ops.attention.scores import Layout, Scores
from fairseq_convattn.ops.attention.triton_scores import MARGIN as _MARGIN
from fairseq_convattn.ops.convolution import triton_launch as convolution
from fairseq_convattn.ops.short_convolution import triton_headwise as headwise
from fairseq_convattn.ops.short_convolution import triton_launch as low_rank

_run = jit.JITFunction.run
MARGIN = _MARGIN.value
UNABLE = 3  # the exit status without what NVIDIA's GPUs need
WITHOUT_SOFTMAX = (3, 4)  # taps, as other packages have them
SPAN = 8  # distances of attention's query term
AIMS = {"forward": 0.7, "backward": 0.6}  # shares of the memory bandwidth


class Case(NamedTuple):
    """An operation at one size. ``rounds``: iterations of the loops, by kernel; ``floors``: bytes
    by pass, and by kernel where a pass has several; empty if memory is no bound."""

    operation: str
    what: str
    launch: Callable[[], None]
    rounds: dict[str, float]
    floors: dict[str, float]


class Absent:
    """A stand-in for the GPU driver, with what Triton asks before it launches a kernel."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return self.target.arch  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


def on_every_launch(capability: str, tell: Callable) -> None:
    """Make launched kernels only compile, for this GPU, and call ``tell`` with the function, the
    compiled kernel and the grid. Exits if that is not possible."""
    if "nvidia" not in backends:
        sys.exit(UNABLE)

    def compile_only(self, *arguments, grid, warmup, **options):
        kernel = _run(self, *arguments, grid=grid, warmup=True, **options)
        tell(self.fn, kernel, grid)

    jit.JITFunction.run = compile_only
    driver.set_active(Absent(int(capability)))
    for module in (convolution, attention, low_rank):
        module.precision = lambda device: "tf32x3"


def _cuobjdump(kernel, option: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resources(kernel) -> dict[str, int]:
    """Registers and stack bytes (spilled registers) of a thread, and shared memory of a block in
    bytes."""
    printed = _cuobjdump(kernel, "-res-usage")
    used = {name: int(count) for name, count in re.findall(r"(REG|STACK):(\d+)", printed)}
    return {
        "registers": used["REG"],
        "stack": used["STACK"],
        "shared_memory": kernel.metadata.shared,
    }


def widths(kernel) -> dict[str, list[int]]:
    """The bits that loads from and stores to global memory move, the widest first."""
    found = mix(instructions(_cuobjdump(kernel, "-sass"), 1))
    return {name: sorted(found[name], reverse=True) for name in ("loads", "stores")}


def convolutions(arguments: argparse.Namespace) -> Iterator[Case]:
    """Forward and backward, causal, with the softmax fused, and few taps without; bytes as each
    tensor has them."""
    dtype = getattr(torch, arguments.dtype)
    batch = max(1, arguments.all_tokens // arguments.tokens)
    x = torch.empty(arguments.tokens, batch, arguments.channels, dtype=dtype)
    sizes = [(size, True) for size in arguments.kernel_sizes]
    for size, softmax in [*sizes, *((size, False) for size in WITHOUT_SOFTMAX)]:
        of_one = arguments.heads, size
        by_position = arguments.tokens, batch, *of_one
        for name, shape in (("dynamic", by_position), ("lightweight", of_one)):
            taps = torch.empty(shape, dtype=dtype)

            def launch(taps=taps, size=size, softmax=softmax) -> None:
                place = len(x), size - 1, softmax, 1.0
                _, lse = convolution._forward(x, taps, None, *place)
                convolution._backward(x, lse, x, taps, None, *place, [True] * 2)

            floors = {"forward": 2 * x.nbytes + taps.nbytes}
            floors["backward"] = 3 * x.nbytes + 2 * taps.nbytes
            what = f"{name} {size}" if softmax else f"{name} {size}, no softmax"
            yield Case("convolution", what, launch, {}, floors)


def attentions(arguments: argparse.Namespace) -> Iterator[Case]:
    """Causal; ``query`` is a band beside the curve."""
    tokens, heads = arguments.tokens, arguments.heads
    shape = max(1, arguments.all_tokens // tokens), heads, tokens
    dtype, head_dim = getattr(torch, arguments.dtype), arguments.channels // heads
    for terms, has_band in (
        ("content,fixed", False),
        ("content,tisa", False),
        ("content,fixed,query", True),
    ):
        before = (tokens if "tisa" in terms else SPAN + 1) + MARGIN
        layout = Layout(SPAN, 0, None, True, 0.125, before, 1 + MARGIN)

        def launch(has_band=has_band, layout=layout) -> None:
            q, k, v = (torch.empty(*shape, head_dim, dtype=dtype) for _ in range(3))
            band = torch.empty(*shape, SPAN + 1) if has_band else None
            curve = torch.empty(heads, layout.before + 1 + layout.after)
            scores = Scores(q, k, v, curve, None, band, None, None)
            kernels = attention._Kernels(scores, layout, None)
            y, lse = kernels.forward()
            kernels.backward(y, lse, y, Scores(*(x is not None for x in scores)))

        kind = head_dim, dtype, has_band
        forward = attention._forward_blocks(*kind)
        by_queries, by_keys = attention._blocks_by_queries(*kind), attention._blocks_by_keys(*kind)
        half = tokens / 2  # of the other side, on average
        rounds = {
            "forward_by_queries": half / forward.keys,
            "backward_by_queries": half / by_queries.keys,
            "backward_by_keys": half / by_keys.queries,
        }
        yield Case("attention", terms, launch, rounds, {})


def short_convolutions(arguments: argparse.Namespace) -> Iterator[Case]:
    """Causal, of four taps, as architectures have them by default, and a static one of 17, as
    encoders have it in projections. The floor of each kernel backward is of its own bytes; the
    target is for all together."""
    dtype, taps = getattr(torch, arguments.dtype), 4
    batch = max(1, arguments.all_tokens // arguments.tokens)
    x = torch.empty(arguments.tokens, batch, arguments.channels, dtype=dtype)
    place = taps - 1, taps - 1

    def by_z(ranks: int) -> tuple[Callable, Tensor]:
        z, up = x.new_empty(*x.shape[:2], ranks), x.new_empty(ranks, taps, arguments.channels)

        def launch() -> None:
            low_rank._forward(x, z, up, *place)
            low_rank._backward(x, x, z, up, *place, [True] * 3)

        return launch, z

    def by_heads(heads: int, taps: int = taps) -> tuple[Callable, Tensor]:
        predicted = x.new_empty(*x.shape[:2], heads, taps)
        given = x, predicted, x.new_empty(arguments.channels, taps), taps - 1, taps - 1

        def launch() -> None:
            headwise._forward(*given)
            headwise._backward(x, *given, [True, heads > 0, True])

        return launch, predicted

    kinds = {
        "static 4": by_heads(0),
        "static 17": by_heads(0, 17),
        "headwise 4": by_heads(arguments.heads),
        "low_rank 4": by_z(16),
    }
    for kind, (launch, predicted) in kinds.items():
        if kind == "low_rank 4":
            blocks = of_blocks = triton.cdiv(arguments.channels, low_rank.CHANNELS)
            kernels = low_rank._Kernels(
                x, predicted, x.new_empty(16, taps, arguments.channels), *place
            )
            backward = kernels.blocks["up"]
            rows, programs = backward.runs * kernels.run(backward), backward.programs
        else:
            static = x.new_empty(arguments.channels, predicted.size(3))
            own = predicted.size(3) - 1
            kernels, of_blocks = headwise._Kernels(x, predicted, static, own, own), 1
            blocks = kernels.blocks
            backward = headwise._backward_blocks(*kernels.kind, x.dtype)
            rows, programs = kernels.runs(backward) * kernels.run(backward), backward.programs
        of_tiles = batch * triton.cdiv(arguments.tokens, rows) * blocks / programs
        rounds = {
            "forward": of_blocks,
            "backward": of_tiles,
            "backward_x": of_blocks,
            "backward_up": of_tiles,
            "backward_z": of_blocks,
        }
        of_two = 2 * x.nbytes + predicted.nbytes
        floors = {
            "forward": of_two,
            "backward": 3 * x.nbytes + 2 * predicted.nbytes,
            "backward_x": of_two,
            "backward_up": of_two,
            "backward_z": of_two,
        }
        yield Case("short_convolution", kind, launch, rounds, floors)


OPERATIONS = {
    "convolution": convolutions,
    "attention": attentions,
    "short_convolution": short_convolutions,
}


def compile_for(capability: str, cases: list[Case]) -> Iterator[dict]:
    """A row per launched kernel."""
    launched = []
    on_every_launch(capability, lambda *kernel: launched.append(kernel))
    gpu = GPUS[capability]
    for case in cases:
        launched.clear()
        case.launch()
        for function, kernel, grid in launched:
            name = function.__name__
            rounds = max(1, case.rounds.get(name, 1))
            counts = instructions(_cuobjdump(kernel, "-sass"), rounds)
            used, warps = resources(kernel), kernel.metadata.num_warps
            which = name.split("_")[0]
            whole = case.floors.get(which)
            floor = case.floors.get(name, whole)
            yield {
                "capability": int(capability),
                "operation": case.operation,
                "case": case.what,
                "kernel": name,
                "programs": math.prod(grid),
                "warps": warps,
                **used,
                "occupancy": gpu.occupancy(used["registers"], used["shared_memory"], warps),
                "instructions": mix(counts),
                "microseconds": estimate(gpu, counts, warps * math.prod(grid), floor),
                "target_microseconds": whole and 1e6 * whole / gpu.memory_rate / AIMS[which],
            }


TABLE = Table(
    *(("sm", ">4"), ("case", "<25"), ("kernel", "<19"), ("programs", ">8,")),
    *(("warps", ">5"), ("regs", ">4"), ("spill", ">5"), ("shared", ">6")),
    *(("occup.", ">6.0%"), ("instr.", ">6.0f"), ("tensor", ">6.0f")),
    *(("loads: bits x", "<23"), ("stores", "<13"), ("floor us", ">8.0f")),
    *(("issue", ">6.0f"), ("ld/st", ">6.0f"), ("target", ">6.0f")),
)
FIELDS = (
    *("GPU", "operation", "case", "kernel", "programs", "warps", "registers", "spilled bytes"),
    *("shared memory bytes", "occupancy %", "instructions", "tensor-core instructions"),
    *("loads", "stores", "floor us", "issue us", "load and store us", "target us"),
    "bound in % of target",
)


def cells(row: dict) -> tuple:
    """What the table has of a row."""

    def times(by_width: dict[int, float]) -> str:
        return " ".join(f"{bits}x{n:.0f}" for bits, n in sorted(by_width.items(), reverse=True))

    found, took = row["instructions"], row["microseconds"]
    return (
        *(row[field] for field in ("capability", "case", "kernel", "programs", "warps")),
        *(row[field] for field in ("registers", "stack", "shared_memory", "occupancy")),
        *(found["all"], found["tensor_cores"], times(found["loads"]), times(found["stores"])),
        *(took["memory"], took["issue"], took["load_store"], row["target_microseconds"]),
    )


def figures(row: dict) -> dict[str, object]:
    """The table's cells as a line of CSV, and how far the bound is from the target."""
    _, *others = cells(row)
    target = row["target_microseconds"]
    share = target and 100 * max(row["microseconds"].values()) / target
    gpu = GPUS[str(row["capability"])].name.split()[0]
    line = dict(zip(FIELDS, (gpu, row["operation"], *others, share), strict=True))
    line["occupancy %"] *= 100
    return {name: round(x) if isinstance(x, float) else x for name, x in line.items()}


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add_names(parser, "--operations", OPERATIONS)
    add_names(parser, "--capabilities", GPUS)
    parser.add_argument(
        "--kernel-sizes", type=positives, default=[3, 7, 15, 31], help="default: 3,7,15,31"
    )
    add_numbers(
        parser,
        ("--tokens", 1024, "of a sentence"),
        ("--all-tokens", 65_536, "of all sentences together"),
        ("--channels", 1024, "in all heads"),
        ("--heads", 16, "that divide the channels"),
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16",
        help="default: bfloat16",
    )  # fmt: skip
    add_csv(parser)
    return parser


def main() -> None:
    parser = _options()
    arguments = parser.parse_args()
    if arguments.channels % arguments.heads:
        parser.error(f"{arguments.heads} heads do not divide {arguments.channels} channels")
    cases = [case for name in arguments.operations for case in OPERATIONS[name](arguments)]
    print(
        f"torch {torch.__version__}, triton {triton.__version__}; {arguments.channels:,} channels, "
        f"{arguments.heads} heads, {arguments.dtype}, {arguments.all_tokens:,} tokens in sentences "
        f"of {arguments.tokens:,}; instructions are a warp's, times in microseconds; target: "
        f"the floor / {' or / '.join(f'{share} {name}' for name, share in AIMS.items())}\n"
    )
    rows = []
    for capability in arguments.capabilities:
        print(f"sm_{capability} as {GPUS[capability].name}\n{TABLE.header}", flush=True)
        for row in compile_for(capability, cases):
            print(TABLE.line(*cells(row)), flush=True)
            rows.append(row)
    save([figures(row) for row in rows], FIELDS, arguments.csv)


if __name__ == "__main__":
    main()
