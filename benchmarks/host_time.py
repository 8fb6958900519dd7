#!/usr/bin/env python
"""Whether a training waits for the host, which launches kernels, or for the GPU, which runs them.

    python benchmarks/host_time.py --device cuda

For every model: the time of an update without the optimizer (forward and backward, in bfloat16 on a
GPU), how long the host takes until it has launched all of it, and how long the kernels take
together. Shapes are those of end_to_end.py. On a CPU there is one time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from end_to_end import (
    FAIRSEQS,
    LM_ARCHITECTURES,
    LM_SHAPE,
    SHAPES,
    TRANSLATION_ARCHITECTURES,
    TYPES,
)
from measuring import (
    Table,
    add_csv,
    add_device,
    add_names,
    add_numbers,
    add_repetitions,
    machine,
    save,
    setting,
)
from torch.profiler import ProfilerActivity, profile
from untrained import untrained

TASKS = ("lm", "translation")
MODELS = ("dynamic", "attention", "lightweight", "transformer", "lightconv")
FIELDS = ("task", "model", "tokens", "update_ms", "host_ms", "kernels_ms")
TABLE = Table(
    *(("task", "<12"), ("model", "<24"), ("tokens", ">6")),
    *(("update ms", ">9.1f"), ("host ms", ">8.1f"), ("kernels ms", ">10.1f")),
)


def update_of(task: str, model: str, arguments: argparse.Namespace) -> Callable[[], float]:
    """An update on random tokens; it returns the seconds until all kernels are launched."""
    architecture, data = LM_ARCHITECTURES[model] + " " + LM_SHAPE, "--task language_modeling"
    if task == "translation":
        architecture = TRANSLATION_ARCHITECTURES[model].format(arguments.shape)
        data = "-s de -t en --share-all-embeddings"
    length = arguments.tokens
    positions = f"--tokens-per-sample {length}" if task == "lm" else ""
    built, net, configuration = untrained(
        architecture, TYPES, f"{data} {positions} --criterion cross_entropy"
    )
    criterion = built.build_criterion(configuration.criterion)
    net = net.to(arguments.device).train()
    if arguments.device == "cuda":  # fairseq takes --bf16 for its own models to mean a TPU
        net = net.half() if model in FAIRSEQS else net.bfloat16()
    shape = max(1, arguments.batch_tokens // length), length
    tokens = torch.randint(4, TYPES, shape, device=arguments.device)
    given = {"src_tokens": tokens, "src_lengths": torch.full(shape[:1], length).to(tokens)}
    if task == "translation":
        given["prev_output_tokens"] = tokens
    sample = {"net_input": given, "target": tokens, "ntokens": tokens.numel()}

    def update() -> float:
        start = time.perf_counter()
        loss, *_ = criterion(net, {**sample, "nsentences": len(tokens)})
        loss.backward()
        launched = time.perf_counter() - start
        net.zero_grad()
        return launched

    return update


def milliseconds(update: Callable[[], float], arguments: argparse.Namespace) -> list[float | None]:
    """Medians of an update and of its host's part, and the sum of its kernels."""
    on_gpu = arguments.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    whole, host = [], []
    for _ in range(arguments.repetitions + 2):
        wait()
        start = time.perf_counter()
        host.append(update())
        wait()
        whole.append(time.perf_counter() - start)
    medians = [1000 * statistics.median(times[2:]) for times in (whole, host)]
    if not on_gpu:
        return [medians[0], None, None]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        update()
        wait()
    kernels = sum(event.self_device_time_total for event in profiler.key_averages()) / 1000
    return [*medians, kernels]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_names(parser, "--tasks", TASKS)
    add_names(parser, "--models", MODELS)
    parser.add_argument("--shape", choices=SHAPES, default=SHAPES[0], help="default: %(default)s")
    add_device(parser)
    add_numbers(
        parser,
        ("--tokens", 27, "of a sentence, or of a language model's block"),
        ("--batch-tokens", 4096, "of an update"),
        ("--threads", torch.get_num_threads(), "of PyTorch"),
    )
    add_repetitions(parser)
    add_csv(parser)
    return parser


def main() -> None:
    parser = options()
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(setting(machine(arguments.device)))
    if arguments.device == "cpu":
        print("On a CPU an update is not divided into the host's time and the kernels'.")
    print(f"\n{TABLE.header}")
    rows = []
    for task in arguments.tasks:
        for model in arguments.models:
            torch.manual_seed(1)
            found = milliseconds(update_of(task, model, arguments), arguments)
            rows.append(dict(zip(FIELDS, (task, model, arguments.tokens, *found), strict=True)))
            print(TABLE.line(task, model, arguments.tokens, *found), flush=True)
            save(rows, FIELDS, arguments.csv)


if __name__ == "__main__":
    main()
