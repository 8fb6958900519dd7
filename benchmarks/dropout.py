#!/usr/bin/env python
"""Dropout on a CPU: the time of fairseq's and of ours, alone and within a translator's training.

Trains (forward and backward) a dropout layer, and an encoder and decoder of the shape `tiny` with
each mixer, on random tokens. Both kinds take turns, round after round, with memory that is freed
kept for the next one. Linux only.
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
    add_numbers,
    add_repetitions,
    keep_freed_memory,
    milliseconds_in_turn,
    positive,
    processor,
    quartiles,
    save,
    setting,
)

PARTS = ("dropout layer", "dynamic", "attention")
KINDS = ("fairseq's", "ours")
P, WIDTH = 0.3, 128
FIELDS = ("part", "dropout", "ms", "lower quartile", "upper quartile", "ratio")
TABLE = Table(
    *(("part", "<13"), ("dropout", "<9"), ("ms", ">8.2f"), ("lower quartile", ">14.2f")),
    *(("upper quartile", ">14.2f"), ("ratio", ">5.2f")),
)


def translator(mixer: str) -> torch.nn.Module:
    """An encoder and decoder with random weights."""
    from fairseq.data import Dictionary

    from fairseq_convattn.architectures import ConvAttnModel

    shape = {"embed_dim": WIDTH, "ffn_embed_dim": 256, "attention_heads": 4, "layers": 4}
    sides = ("encoder", "decoder")
    options = {f"{side}_{name}": value for side in sides for name, value in shape.items()}
    options |= {f"{side}_mixers": mixer for side in sides}
    dictionary = Dictionary()
    for word in range(8_000):
        dictionary.add_symbol(str(word))
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return ConvAttnModel.build_model(Namespace(dropout=P, **options), task).train()


def with_fairseqs_dropout(model: torch.nn.Module) -> torch.nn.Module:
    from fairseq.modules import FairseqDropout

    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, FairseqDropout):
                setattr(parent, name, FairseqDropout(child.p))
    return model


def training(part: str, kind: str, options: Namespace) -> Callable[[], None]:
    """A step of one kind of dropout."""
    from fairseq.modules import FairseqDropout

    from fairseq_convattn.architectures.dropout import Dropout

    torch.manual_seed(1)
    if part == "dropout layer":
        layer = Dropout(P) if kind == "ours" else FairseqDropout(P)
        x = torch.randn(options.tokens, options.sentences, WIDTH, requires_grad=True)
        grad = torch.randn_like(x)
        return lambda: torch.autograd.backward(layer(x), grad)
    model = translator(part)
    model = model if kind == "ours" else with_fairseqs_dropout(model)
    tokens = torch.randint(4, 8_000, (options.sentences, options.tokens))
    lengths = torch.full((options.sentences,), options.tokens)
    return lambda: model(tokens, lengths, tokens)[0].logsumexp(-1).sum().backward()


def measure(part: str, options: Namespace) -> list[dict]:
    """Rows of ``FIELDS``."""
    steps = [training(part, kind, options) for kind in KINDS]
    clock = time.process_time if options.threads == 1 else time.perf_counter
    found = milliseconds_in_turn(steps, options.repetitions, clock)
    spreads = [quartiles(times) for times in found]
    return [
        dict(zip(FIELDS, (part, kind, median, low, high, median / spreads[0][1]), strict=True))
        for kind, (low, median, high) in zip(KINDS, spreads, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_numbers(parser, ("--tokens", 25, "of a sentence"), ("--sentences", 160, "of an update"))
    threads = "default: all; with one, processor time is measured"
    parser.add_argument("--threads", type=positive, default=os.cpu_count(), help=threads)
    add_repetitions(parser)
    add_csv(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    print(f"{setting(f'{processor()}, {options.threads} threads')}\n\n{TABLE.header}", flush=True)
    rows: list[dict] = []
    for part in PARTS:
        for row in measure(part, options):
            rows.append(row)
            print(TABLE.line(*row.values()), flush=True)
            save(rows, FIELDS, options.csv)


if __name__ == "__main__":
    main()
