"""Compiles the Triton kernels for a GPU that need not be there; prints what each takes as JSON.

export PYTHONPATH=.:benchmarks
python tests/ops/compile_for_gpus.py convolution 90 bfloat16      # or another of OPERATIONS
python tests/ops/compile_for_gpus.py convolution 90 bfloat16 2    # the first two shapes
"""

import json
import re
import sys

import torch
from compiled_kernels import on_every_launch, resources, widths

from fairseq_convattn.ops.attention import triton_launch as attention
from fairseq_convattn.ops.attention.dropout import Dropout
from fairseq_convattn.ops.attention.scores import Layout, Scores
from fairseq_convattn.ops.attention.triton_scores import MARGIN
from fairseq_convattn.ops.convolution import triton_launch as convolution
from fairseq_convattn.ops.short_convolution import triton_headwise as headwise
from fairseq_convattn.ops.short_convolution import triton_launch as short_convolution

TIME, BATCH, HEADS = 100, 2, 4


def convolve(dtype: torch.dtype, kernel_size: int, width: int) -> None:
    x = torch.randn(TIME, BATCH, HEADS * width, dtype=dtype)
    logits = torch.randn(TIME, BATCH, HEADS, kernel_size, dtype=dtype)
    for taps, kept in ((logits, logits > 0), (logits[0, 0].clone(), None)):
        options = TIME, kernel_size - 1, True, 0.9
        _, lse = convolution._forward(x, taps, kept, *options)
        convolution._backward(x, lse, x, taps, kept, *options, [True] * 2)
    convolution._forward(x[-kernel_size:], logits[:1], None, 1, kernel_size - 1, True, 1.0)


def attend(dtype: torch.dtype, width: int) -> None:
    q, k, v = (torch.randn(BATCH, HEADS, TIME, width, dtype=dtype) for _ in range(3))
    by_position = torch.randn(BATCH, HEADS, TIME)
    added = by_position, torch.randn(BATCH, HEADS, TIME, 17), by_position, by_position
    dropped = added, Dropout(0.1, torch.tensor(1))
    for near, (more, dropout) in ((TIME, ((None,) * 4, None)), (9, dropped)):
        end = near + MARGIN.value
        scores = Scores(q, k, v, torch.randn(HEADS, 2 * end + 1), *more)
        layout = Layout(8, 8, None, False, 0.1, end, end)
        kernels = attention._Kernels(scores, layout, dropout)
        y, lse = kernels.forward()
        kernels.backward(y, lse, y, Scores(*(x is not None for x in scores)))


def convolve_shortly(dtype: torch.dtype, taps: int, ranks: int) -> None:
    x = torch.randn(TIME, BATCH, 256, dtype=dtype)
    z, up = torch.randn(TIME, BATCH, ranks, dtype=dtype), torch.randn(ranks, taps, 256, dtype=dtype)
    short_convolution._forward(x, z, up, taps - 1, taps - 1)
    short_convolution._backward(x, x, z, up, taps - 1, taps - 1, [True] * 3)
    for width in (64, 96, 128):
        x = torch.randn(TIME, BATCH, HEADS * width, dtype=dtype)
        predicted = torch.randn(TIME, BATCH, HEADS, taps, dtype=dtype)
        given = x, predicted, torch.randn(HEADS * width, taps, dtype=dtype), taps - 1, taps - 1
        headwise._forward(*given)
        headwise._backward(x, *given, [True] * 3)


def convolve_statically(dtype: torch.dtype, taps: int) -> None:
    x, of_none = torch.randn(TIME, BATCH, 256, dtype=dtype), torch.empty(TIME, BATCH, 0, taps)
    given = x, of_none, torch.randn(256, taps, dtype=dtype), taps - 1, -1
    headwise._forward(*given)
    headwise._backward(x, *given, [True, False, True])


OPERATIONS = {
    "convolution": (convolve, [(31, 64), (3, 64), (7, 8), (7, 64), (64, 80), (31, 256)]),
    "attention": (attend, [(64,), (32,), (128,), (256,)]),
    "short_convolution": (
        convolve_shortly,
        [(4, 15), (3, 16), (8, 64), (4, 17), (3, 33), (16, 64), (16, 1)],
    ),
    "static_convolution": (convolve_statically, [(17,), (5,), (32,)]),
}


def rows_of_taps(kernel) -> list[int]:
    """How many rows of taps each load by bands reads at once, each from a cache line of its own."""
    code = kernel.asm["ttgir"]
    layout = r"(#\w+) = #ttg.blocked<.*threadsPerWarp = \[\d+, (\d+), \d+\]"
    layouts = dict(re.findall(layout, code))
    loads = re.findall(r"tt.load .*tensor<\d+x\d+x\d+x!tt.ptr<\w+>, (#\w+)>", code)
    return [int(layouts[layout]) for layout in loads]


def atomics(kernel) -> list[str]:
    """The instructions by which programs change memory that others change, in any order."""
    return re.findall(r"\b(?:atom|red|cp\.reduce)\.[\w.:]+", kernel.asm["ptx"])


def main(operation: str, capability: str, dtype: str, shapes: str = "") -> None:
    def tell(function, kernel, grid) -> None:
        found = {"kernel": function.__name__, **resources(kernel), **widths(kernel)}
        found |= {"rows_of_taps": rows_of_taps(kernel), "atomics": atomics(kernel)}
        print(json.dumps(found), flush=True)

    on_every_launch(capability, tell)
    compute, every = OPERATIONS[operation]
    for shape in every[: int(shapes) if shapes else None]:
        compute(getattr(torch, dtype), *shape)


if __name__ == "__main__":
    main(*sys.argv[1:])
