#!/usr/bin/env python
"""Language models on long inputs: memory and time against the number of tokens.

Trains (forward and backward), scores (forward) and generates with this package's language
models and fairseq's transformer_lm and lightconv_lm of the same shape, side by side. Every
measurement runs in a process of its own, whose memory is counted from the built model on, its
gradients included. Linux only.
"""

import argparse
import os
import re
import resource
import statistics
import time
from pathlib import Path

import torch
from end_to_end import LM_ARCHITECTURES, LM_SHAPE, TYPES
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from measuring import (
    Table,
    add_csv,
    add_names,
    add_numbers,
    in_own_process,
    lengths,
    process_memory,
    processor,
    save,
    setting,
)
from untrained import untrained

MODELS = ("dynamic", "lightweight", "attention", "transformer_lm", "lightconv_lm")
FAIRSEQS = ("transformer_lm", "lightconv_lm")
TASKS = ("train", "score", "generate")
FIELDS = ("task", "model", "tokens", "memory_MiB", "milliseconds_per_token")
GENERATED_WINDOW = 64


def build(name: str, max_positions: int) -> tuple[BaseFairseqModel, Dictionary]:
    """A model of fairseq's or ours with random weights, and its dictionary."""
    architecture = LM_ARCHITECTURES[name.removesuffix("_lm")]
    data = f"--task language_modeling --tokens-per-sample {max_positions}"
    if name == "transformer_lm":  # pre-norm, as the others are
        data += " --decoder-normalize-before"
    task, model, _ = untrained(f"{architecture} {LM_SHAPE}", TYPES, data)
    return model, task.target_dictionary


def train(model, tokens) -> None:
    logits, _ = model(tokens)
    log_probabilities = model.get_normalized_probs((logits, None), log_probs=True)
    (-log_probabilities.gather(-1, tokens.unsqueeze(-1)).mean()).backward()


def score(model, tokens) -> None:
    with torch.no_grad():
        logits, _ = model(tokens)
        model.get_normalized_probs((logits, None), log_probs=True)


def generate(model, tokens, dictionary) -> list[float]:
    """Generate with fairseq's generator, beam 1; returns each token's start time in seconds."""
    from fairseq.sequence_generator import SequenceGenerator

    begins: list[float] = []
    forward = model.decoder.forward

    def timed(*arguments, **options):  # a hook does not work: fairseq calls forward directly
        begins.append(time.perf_counter())
        return forward(*arguments, **options)

    model.decoder.forward = timed
    length = tokens.size(1)
    generator = SequenceGenerator(
        [model], dictionary, beam_size=1, max_len_a=0, max_len_b=length, min_len=length
    )
    generator.generate([model], {"net_input": {"src_tokens": tokens[:, :1]}})
    return begins


def measure(task: str, name: str, tokens: int, threads: int, limit_gib: float, results) -> None:
    """Put (MiB, milliseconds per token) into ``results``, or None where memory ran out."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model, dictionary = build(name, tokens + 1)
    model.train(task == "train")
    inputs = torch.randint(dictionary.nspecial, TYPES, (1, tokens))
    limit = int(limit_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before = process_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    try:
        if task == "generate":
            begins = generate(model, inputs, dictionary)
            window = [b - a for a, b in zip(begins, begins[1:], strict=False)][-GENERATED_WINDOW:]
            per_token = statistics.median(window) * 1e3
        else:
            {"train": train, "score": score}[task](model, inputs)
            per_token = (time.perf_counter() - start) * 1e3 / tokens
    except (RuntimeError, MemoryError) as error:
        if not re.search("memory|alloc", str(error)) and not isinstance(error, MemoryError):
            raise
        results.put(None)
        return
    results.put((process_memory("VmHWM") - before, per_token))


def _label(model: str) -> str:
    return f"fairseq's {model}" if model in FAIRSEQS else model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_names(parser, "--tasks", TASKS)
    add_names(parser, "--models", MODELS)
    parser.add_argument(
        "--tokens",
        type=lengths,
        default=[512, 1024, 2048, 4096, 8192],
        help="lengths of the input, one sequence each (default: 512,1024,2048,4096,8192)",
    )
    add_numbers(parser, ("--threads", os.cpu_count(), "of PyTorch"))
    parser.add_argument(
        "--memory", type=float, default=24, metavar="GIB", help="address space (default: 24)"
    )
    add_csv(parser)
    arguments = parser.parse_args()
    print(
        f"{setting(f'{processor()}, {arguments.threads} threads')}; {LM_SHAPE}, {TYPES:,} types, "
        f"float32, batch 1; memory beyond the model, at most {arguments.memory:g} GiB of "
        f"address space; generating: median of the last {GENERATED_WINDOW} tokens\n"
    )
    table = Table(
        *(("task", "<8"), ("model", "<24"), ("tokens", ">6,")),
        *(("MiB", ">10,.0f"), ("ms / token", ">12.3f")),
    )
    print(table.header)
    rows = []
    for task in arguments.tasks:
        for model in arguments.models:
            for tokens in arguments.tokens:
                result = in_own_process(
                    measure, task, model, tokens, arguments.threads, arguments.memory
                )
                memory, per_token = result or (None, None)
                rows.append(
                    dict(zip(FIELDS, (task, model, tokens, memory, per_token), strict=True))
                )
                line = table.line(task, _label(model), tokens, *(result or ()))
                print(line if result else f"{line}  out of memory", flush=True)
                save(rows, FIELDS, arguments.csv)


if __name__ == "__main__":
    main()
