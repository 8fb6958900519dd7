#!/usr/bin/env python
"""Short convolutions in attention: what they add to the time of a language model's layer.

Computes (forward) and trains (forward and backward) causal attention and the whole decoder layer
around it, without short convolutions and with each kind after the maps of ``--on``, and a single
one beside a copy of its input (``operation``), where there is a static one of 17 taps, too, as in
``separable`` projections; those of low rank by the eager formula too, which stores a kernel per
position and channel. All in turn, round after round, with memory that is freed kept for the next
one. On a GPU many calls are one CUDA graph, so that what is timed are kernels. Linux only.
"""

import argparse
import operator
import os
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec

import torch
from measuring import (
    GRAPH,
    add_csv,
    add_device,
    add_numbers,
    add_repetitions,
    graph_of,
    keep_freed_memory,
    machine,
    milliseconds_in_turn,
    positive,
    quartiles,
    save,
    setting,
)

KINDS = ("none", "static", "headwise", "low_rank", "low_rank, eager formula")
LONG = "static, 17 taps"
LIBRARIES = {"headwise, dynamic-conv1d": "headwise", "low_rank, dynamic-conv1d": "lowrank"}
FIELDS = ("dtype", "pass", "part", "kind", "ms", "lower quartile", "upper quartile", "ratio")
WIDTH, HEADS, FFN = 512, 8, 2048


def layer(kind: str, on: str):
    """A decoder layer with random weights; ``on``: of --short-convolution-on."""
    from fairseq.data import Dictionary

    from fairseq_convattn.architectures import ConvAttnLanguageModel

    shape = {
        "decoder_layers": 1,
        "decoder_embed_dim": WIDTH,
        "decoder_ffn_embed_dim": FFN,
        "decoder_attention_heads": HEADS,
        "decoder_mixers": "attention",
        "dropout": 0.0,
    }
    shape |= {"max_target_positions": 1, "short_convolution": kind.partition(",")[0]}
    shape |= {"short_convolution_on": on}
    dictionary = Dictionary()
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return ConvAttnLanguageModel.build_model(Namespace(**shape), task).decoder.layers[0]


def operation(kind: str, x: torch.Tensor) -> tuple[Callable, list[torch.Tensor]]:
    """One short convolution, or a copy, as a function of x and of random kernels, and these."""
    from fairseq_convattn.ops import low_rank_short_conv, short_conv

    taps, rank = 17 if kind == LONG else 4, 15
    static = torch.randn(WIDTH, taps).to(x)
    if kind == "none":
        return torch.clone, [x]
    if kind in ("static", LONG):
        return lambda x, static: short_conv(x, None, static, causal=True), [x, static]
    if kind.startswith("headwise"):
        predicted = torch.randn(*x.shape[:2], HEADS, taps).to(x)
        if kind in LIBRARIES:
            return _librarys_headwise(x, predicted, static)
        return lambda *given: short_conv(*given, causal=True), [x, predicted, static]
    z = torch.randn(*x.shape[:2], rank).to(x)
    up = torch.randn(rank, taps, WIDTH).to(x)
    if kind in LIBRARIES:
        return _librarys_low_rank(x, z, up, static)
    return lambda *given: low_rank_short_conv(*given, causal=True), [x, z, up, static]


def _librarys_headwise(x, predicted, static) -> tuple[Callable, list[torch.Tensor]]:
    """dynamic-conv1d has sentences first, and a position's own tap first."""
    from headwise import headwise_dynamic_convolution

    given = x.transpose(0, 1), predicted.transpose(0, 1).flip(-1), static.flip(-1).t()
    given = [each.detach().contiguous() for each in given]
    return partial(headwise_dynamic_convolution, residual=True), given


def _librarys_low_rank(x, z, up, static) -> tuple[Callable, list[torch.Tensor]]:
    from lowrank import lowrank_dynamic_convolution

    given = x.transpose(0, 1), z.transpose(0, 1), up.flip(1).flatten(1), static.flip(-1).t()
    given = [each.detach().contiguous() for each in given]
    return partial(lowrank_dynamic_convolution, residual=True), given


def kinds_of(part: str, options: Namespace) -> list[str]:
    if part != "operation":
        return [*KINDS]
    return [*KINDS, LONG, *(LIBRARIES if options.dynamic_conv1d else ())]


def steps(part: str, training: bool, options: Namespace) -> Iterator[Callable[[], None]]:
    """One step function per kind."""
    torch.manual_seed(1)
    like = {"dtype": getattr(torch, options.dtype), "device": options.device}
    x = torch.randn(options.tokens, options.batch, WIDTH, **like)
    for kind in kinds_of(part, options):
        if part == "operation":
            yield _step(*operation(kind, x), kind, training)
            continue
        whole = layer(kind, options.on).to(**like)
        module = whole if part == "layer" else whole.self_attn
        yield _step(_first_result(module), [x, *module.parameters()], kind, training)


def _first_result(module: torch.nn.Module) -> Callable:
    """The module as a function of its input and its parameters, which it has already."""
    return lambda x, *parameters: module(x)[0]


def _step(
    compute: Callable, given: list[torch.Tensor], kind: str, training: bool
) -> Callable[[], None]:
    from fairseq_convattn.ops import use_implementation

    for each in given:
        each.requires_grad_()
    grad = torch.randn_like(given[0])

    def step() -> None:
        eager = use_implementation("reference") if kind.endswith("formula") else nullcontext()
        with eager, torch.set_grad_enabled(training):
            y = compute(*given)
        if training:
            torch.autograd.grad(y, given, grad, allow_unused=True)

    return graph_of(step) if grad.is_cuda else step


def measure(part: str, training: bool, options: Namespace) -> Iterator[dict]:
    """Rows of ``FIELDS``."""
    alone = options.device == "cpu" and options.threads == 1
    clock = time.process_time if alone else time.perf_counter
    found = milliseconds_in_turn(steps(part, training, options), options.repetitions, clock)
    calls = GRAPH if options.device == "cuda" else 1
    spreads = [[time / calls for time in quartiles(each)] for each in found]
    kinds = kinds_of(part, options)
    for kind, times, (lower, median, upper) in zip(kinds, found, spreads, strict=True):
        figures = (f"{x:.3f}" for x in (median, lower, upper))
        which = "training" if training else "forward"
        # of each round, since a shared machine's speed changes from round to round
        ratio = statistics.median(map(operator.truediv, times, found[0]))
        row = (options.dtype, which, part, kind, *figures, f"{ratio:.2f}")
        yield dict(zip(FIELDS, row, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_numbers(parser, ("--tokens", 1024, "of a sentence"), ("--batch", 2, "sentences"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--on", metavar="LETTERS", default="qkv", help="linear maps, as in --short-convolution-on"
    )
    add_device(parser)
    parser.add_argument("--threads", type=positive, default=os.cpu_count(), help="default: all")
    parser.add_argument(
        "--dynamic-conv1d",
        action="store_true",
        help="time its headwise.py and lowrank.py, too, which PYTHONPATH must have: a single "
        "convolution in their own layout, on a GPU",
    )
    add_repetitions(parser)
    add_csv(parser)
    options = parser.parse_args()
    absent = [module for module in LIBRARIES.values() if not find_spec(module)]
    if options.dynamic_conv1d and (absent or options.device == "cpu"):
        why = f"cannot import {absent[0]}" if absent else "its kernels need --device cuda"
        parser.error(f"--dynamic-conv1d: {why}")
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    alone = options.device == "cpu" and options.threads == 1
    print(
        f"{setting(f'{machine(options.device)}, {options.threads} threads')}; "
        f"{options.batch} x {options.tokens} tokens, width {WIDTH}, {HEADS} heads, "
        f"feed-forward {FFN}, on {options.on}; {'processor' if alone else 'wall'} time, median "
        f"and quartiles of {options.repetitions} rounds; ratio: median of "
        f"those to the first of its lines\n"
    )
    rows: list[dict] = []
    has_attentions = set("qkvo") & set(options.on)
    for part in ("operation", *(("attention",) if has_attentions else ()), "layer"):
        for training in (False, True):
            for row in measure(part, training, options):
                rows.append(row)
                print("  ".join(f"{value:>10}" for value in row.values()), flush=True)
                save(rows, FIELDS, options.csv)


if __name__ == "__main__":
    main()
