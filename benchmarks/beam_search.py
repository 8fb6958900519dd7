#!/usr/bin/env python
"""Seconds that beam search takes for a batch, without the start of a process and compilation.

    python benchmarks/beam_search.py --device cuda

Untrained translators of equal shape, in float16 on a GPU, translate one batch of random sentences
several times. The first time is not counted. ``--without-graphs`` also measures decoders that
decode in CUDA graphs without them.
"""

import argparse
import os
import statistics
import time

import torch
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.sequence_generator import SequenceGenerator
from measuring import (
    Table,
    add_csv,
    add_device,
    add_numbers,
    add_repetitions,
    machine,
    save,
    setting,
)
from untrained import untrained

ARCHITECTURES = ("attention_wmt_en_de_big", "dynamic_conv_wmt_en_de_big")
FIELDS = ("architecture", "seconds", "least", "most", "sentences_per_second", "x_first")
TABLE = Table(
    *(("architecture", "<38"), ("s a batch", ">9.3f"), ("least..most", ">14.3f")),
    *(("sentences/s", ">11.1f"), ("x first", ">7.2f")),
)


def generator_of(architecture: str, arguments: argparse.Namespace) -> tuple:
    """An untrained model as fairseq-generate prepares it, and what searches with it."""
    more = "-s de -t en --share-all-embeddings"
    task, model, configuration = untrained(architecture, arguments.types, more)
    model = model.to(arguments.device).eval()
    if arguments.device == "cuda":
        model = model.half()
    model.prepare_for_inference_(configuration)
    length = {"max_len_a": 0, "max_len_b": arguments.tokens, "min_len": arguments.tokens}
    search = SequenceGenerator([model], task.target_dictionary, beam_size=arguments.beam, **length)
    return model, search


@torch.no_grad()
def measured(architecture: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every repetition, by the name of the row."""
    torch.manual_seed(1)
    model, search = generator_of(architecture, arguments)
    found = {architecture: seconds(model, search, arguments)}
    if arguments.without_graphs and getattr(model.decoder, "step_graphs", None) is not None:
        model.decoder.step_graphs = None
        found[f"{architecture}, no graphs"] = seconds(model, search, arguments)
    return found


def seconds(
    model: FairseqEncoderDecoderModel, search: SequenceGenerator, arguments: argparse.Namespace
) -> list[float]:
    torch.manual_seed(2)
    shape = arguments.batch_size, arguments.tokens
    source = torch.randint(4, arguments.types, shape, device=arguments.device)
    lengths = torch.full(shape[:1], arguments.tokens, device=arguments.device)
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}
    found = []
    for _ in range(arguments.repetitions + 1):
        start = time.perf_counter()
        search.generate([model], sample)
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found[1:]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--architectures", nargs="+", default=list(ARCHITECTURES), metavar="NAME",
        help=f"default: {' '.join(ARCHITECTURES)}",
    )  # fmt: skip
    parser.add_argument(
        "--without-graphs", action="store_true", help="measure also without CUDA graphs"
    )
    add_device(parser)
    add_numbers(
        parser,
        ("--batch-size", 128, "sentences"),
        ("--tokens", 27, "of every sentence and every output"),
        ("--beam", 5, "hypotheses"),
        ("--types", 32_000, "in the dictionary"),
        ("--threads", os.cpu_count(), "of PyTorch"),
    )
    add_repetitions(parser)
    add_csv(parser)
    return parser


def main() -> None:
    parser = options()
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"{setting(machine(arguments.device))}; {arguments.threads} threads; batches of "
        f"{arguments.batch_size} sentences of {arguments.tokens} tokens, beam {arguments.beam}\n"
        f"\n{TABLE.header}"
    )
    rows, first = [], None
    for architecture in arguments.architectures:
        for name, found in measured(architecture, arguments).items():
            median = statistics.median(found)
            first = first or median
            least, most = min(found), max(found)
            rates = (arguments.batch_size / median, first / median)
            rows.append(dict(zip(FIELDS, (name, median, least, most, *rates), strict=True)))
            print(TABLE.line(name, median, (least, most), *rates), flush=True)
            save(rows, FIELDS, arguments.csv)


if __name__ == "__main__":
    main()
