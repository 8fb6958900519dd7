#!/usr/bin/env python
"""A language model's layers in training, as they are and under torch.compile.

    python benchmarks/compiled_layers.py --device cuda --dtype bfloat16

computes the loss and all gradients of decoder layers with dropout, one after the other, in turn,
round after round. The seconds that compiling takes are a column of their own. Linux only.
"""

import argparse
import os
import time
from argparse import Namespace
from collections.abc import Callable

import torch
from measuring import (
    Table,
    add_csv,
    add_device,
    add_numbers,
    add_repetitions,
    keep_freed_memory,
    machine,
    milliseconds_in_turn,
    names_among,
    quartiles,
    save,
    setting,
)

MIXERS = ("dynamic", "lightweight", "attention", "composite", "tisa")
FIELDS = ("mixer", "ms", "compiled_ms", "ratio", "compiling_s")
TABLE = Table(
    ("mixer", "<12"), ("ms", ">9.2f"), ("compiled", ">9.2f"), ("ratio", ">6.2f"),
    ("compiling s", ">11.1f"),
)  # fmt: skip


def layers(mixer: str, options: Namespace) -> torch.nn.ModuleList:
    """Decoder layers with random weights."""
    from fairseq.data import Dictionary

    from fairseq_convattn.architectures import ConvAttnLanguageModel

    shape = {
        "decoder_layers": options.layers,
        "decoder_embed_dim": options.width,
        "decoder_ffn_embed_dim": 4 * options.width,
        "decoder_attention_heads": options.width // 64,
        "decoder_mixers": mixer,
        "dropout": 0.1,
        "max_target_positions": options.tokens,
    }
    dictionary = Dictionary()
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = ConvAttnLanguageModel.build_model(Namespace(**shape), task)
    return model.decoder.layers.to(options.device, getattr(torch, options.dtype)).train()


def step(mixer: str, compiled: bool, options: Namespace) -> Callable[[], None]:
    torch.manual_seed(1)
    stack = layers(mixer, options)
    if compiled:
        for layer in stack:
            layer.compile(dynamic=False)
    like = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    x = torch.randn(options.tokens, options.batch, options.width, **like)

    def train() -> None:
        y = x
        for layer in stack:
            y = layer(y)[0]
        torch.autograd.grad(y.float().square().mean(), list(stack.parameters()), allow_unused=True)
        if x.is_cuda:
            torch.cuda.synchronize()

    return train


def measure(mixer: str, options: Namespace) -> dict:
    """A row of ``FIELDS``."""
    torch.compiler.reset()
    steps = [step(mixer, compiled, options) for compiled in (False, True)]
    start = time.perf_counter()
    steps[1]()
    compiling = time.perf_counter() - start
    found = milliseconds_in_turn(steps, options.repetitions)
    eager, compiled = (quartiles(each)[1] for each in found)
    figures = mixer, eager, compiled, compiled / eager, compiling
    return dict(zip(FIELDS, figures, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mixers", type=names_among(MIXERS), default=["dynamic", "attention"], metavar="NAME,...",
        help=f"of {', '.join(MIXERS)} (default: dynamic,attention)",
    )  # fmt: skip
    add_device(parser)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    add_numbers(
        parser,
        ("--layers", 2, "of the model"),
        ("--width", 512, "of the model"),
        ("--tokens", 1024, "of a sentence"),
        ("--batch", 2, "sentences"),
        ("--threads", os.cpu_count(), "of PyTorch"),
    )
    add_repetitions(parser)
    add_csv(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    print(
        f"{setting(machine(options.device))}; {options.threads} threads; {options.layers} layers "
        f"of width {options.width}, {options.batch} x {options.tokens} tokens, {options.dtype}; "
        f"ms a training step, median of {options.repetitions} rounds\n\n{TABLE.header}"
    )
    rows = []
    for mixer in options.mixers:
        rows.append(measure(mixer, options))
        print(TABLE.line(*rows[-1].values()), flush=True)
        save(rows, FIELDS, options.csv)


if __name__ == "__main__":
    main()
