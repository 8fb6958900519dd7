#!/usr/bin/env python
"""Two checks of a device, each a table: what it is and how fast it copies and multiplies, and
whether a training step of every mixer agrees there with float64 on the CPU.

python benchmarks/gpu_checks.py facts --device cuda     # needs torch alone
python benchmarks/gpu_checks.py mixers --device cuda    # needs fairseq
"""

import argparse
import copy
import multiprocessing
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import torch
from measuring import add_csv, add_device, machine, milliseconds_in_turn, processor, save

FACTS = ("fact", "value")
MIXERS = ("mixer", "dtype", "tokens", "worst_error", "of", "band", "agrees")
# of the largest element of the output or the gradient: rounding of each dtype, through a layer
BANDS = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
LEAST_SCALE = 1e-2  # of the largest element of all of them
SIZES = {"cpu": (2**26, 512, "float32"), "cuda": (2**29, 8192, "bfloat16")}
TOKENS, SENTENCES = {"cpu": 40, "cuda": 150}, 2  # more than a kernel's tile of 128
WORKERS = 8
SHAPE = {"cpu": (32, 2), "cuda": (1024, 16)}  # width and heads


def facts(device: str) -> Iterator[dict[str, str]]:
    """Rows of ``FACTS``; rates are medians of ten rounds."""
    elements, side, dtype = SIZES[device]
    found = {
        "device": machine(device),
        "CPU": processor(),
        "Python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["compute capability"] = f"{properties.major}.{properties.minor}"
        found["multiprocessors"] = str(properties.multi_processor_count)
        found["memory, GiB"] = f"{properties.total_memory / 2**30:.1f}"
    x = torch.ones(elements, dtype=torch.bfloat16, device=device)
    y = torch.empty_like(x)
    matrix = torch.ones(side, side, dtype=getattr(torch, dtype), device=device)
    took = milliseconds_in_turn(
        [_waiting(lambda: y.copy_(x)), _waiting(lambda: matrix @ matrix)], 10
    )
    copied, multiplied = map(statistics.median, took)
    found["copy, GB/s"] = f"{2 * x.nbytes / copied / 1e6:,.0f}"
    found[f"product in {dtype}, TFLOP/s"] = f"{2 * side**3 / multiplied / 1e9:,.2f}"
    for fact, value in found.items():
        yield dict(zip(FACTS, (fact, value), strict=True))


def _waiting(compute):
    def step() -> None:
        compute()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return step


def mixers(device: str) -> Iterator[dict]:
    """Rows of ``MIXERS``. On a GPU they are found side by side, since compiling takes longest."""
    cases = [(name, dtype, device) for name in _variants() for dtype in BANDS]
    if device == "cpu":
        yield from map(_agreement, cases)
        return
    workers = min(WORKERS, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_agreement, cases)


def _agreement(case: tuple[str, str, str]) -> dict:
    name, dtype, device = case
    torch.set_num_threads(2 if device == "cuda" else os.cpu_count())
    worst, of = _worst_error(_module(name, *SHAPE[device]), dtype, device, SHAPE[device][0])
    agrees = "yes" if worst <= BANDS[dtype] else "no"
    row = name, dtype, TOKENS[device], worst, of, BANDS[dtype], agrees
    return dict(zip(MIXERS, row, strict=True))


def _variants() -> dict[str, dict]:
    """Options of every mixer, and of attention with every kind of short convolution."""
    from fairseq_convattn.mixers import MIXERS as NAMES
    from fairseq_convattn.mixers.config import SHORT_CONVOLUTIONS
    from fairseq_convattn.ops.attention import TERMS

    variants = {name: {"mixer": name} for name in NAMES}
    variants["composite"]["attention_terms"] = tuple(TERMS)
    for kind in SHORT_CONVOLUTIONS:
        if kind != "none":
            short = {"mixer": "attention", "short_convolution": kind}
            variants[f"attention, {kind} short convolution"] = short
    return variants


def _module(name: str, width: int, heads: int) -> torch.nn.Module:
    """None of its parameters is zero, or it would hide the gradients of others."""
    from fairseq_convattn.mixers import MixerConfig, build_mixer

    torch.manual_seed(1)
    options = _variants()[name] | {"embed_dim": width, "num_heads": heads, "causal": True}
    module = build_mixer(MixerConfig(**options))
    for parameter in module.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return module


def _worst_error(module, dtype: str, device: str, width: int) -> tuple[float, str]:
    """The largest relative error among output and gradients, and which tensor has it."""
    rounded = copy.deepcopy(module).to(getattr(torch, dtype))
    x = torch.randn(TOKENS[device], SENTENCES, width)
    x = x.to(getattr(torch, dtype))
    expected = _train(copy.deepcopy(rounded).double(), x.double())
    actual = _train(rounded.to(device), x.to(device))
    largest = max(float(right.abs().max()) for right in expected.values())
    errors = {}
    # some gradients are zero except for rounding, such as that of k's bias
    for name, right in expected.items():
        scale = max(float(right.abs().max()), LEAST_SCALE * largest)
        errors[name] = float((actual[name].double().cpu() - right).abs().max()) / scale
    of = max(errors, key=errors.get)
    return errors[of], of


def _train(module, x) -> dict[str, torch.Tensor]:
    x = x.requires_grad_()
    y, _ = module(x, x, x)
    # at random: what sums to zero would leave nothing but rounding in the biases' gradients
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
    named = {"x": x, **dict(module.named_parameters())}
    gradients = torch.autograd.grad(y, list(named.values()), grad)
    return {"output": y.detach(), **dict(zip(named, gradients, strict=True))}


CHECKS = {"facts": (facts, FACTS), "mixers": (mixers, MIXERS)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("check", choices=CHECKS)
    add_device(parser)
    add_csv(parser)
    arguments = parser.parse_args()
    check, fields = CHECKS[arguments.check]
    torch.set_num_threads(os.cpu_count())
    rows = []
    for row in check(arguments.device):
        rows.append(row)
        print(*row.values(), sep="  ", flush=True)
        save(rows, fields, arguments.csv)
    if any(row.get("agrees") == "no" for row in rows):
        sys.exit("error: not every mixer agrees with the CPU")


if __name__ == "__main__":
    main()
