#!/usr/bin/env python
"""Composite attention: time and memory beside PyTorch's attention and the published code's way.

Computes (forward) and trains (forward and backward, the tables' gradients included)
``composite_attention`` with some sets of terms, ``scaled_dot_product_attention`` with the same
padding as a float mask, and the terms as the published BERT code computes them: scores of all
heads, relative terms gathered for every pair of positions. Causal attention on a GPU is timed
beside FlashAttention and whatever kernel PyTorch chooses. Implementations are timed in turn, round
after round, with memory that is freed kept for the next one, on a GPU as CUDA graphs; memory is
measured once each, on a CPU in a process of its own, inputs and masks not counted. Linux only.
"""

import argparse
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from measuring import (
    GRAPH,
    ROUNDS,
    Table,
    add_csv,
    add_device,
    add_names,
    add_numbers,
    add_repetitions,
    graph_of,
    isolation,
    keep_freed_memory,
    lengths,
    machine,
    milliseconds_in_turn,
    peak_memory,
    positive,
    quartiles,
    save,
    setting,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

TERMS = ("content,fixed", "content,tisa", "content,fixed,query", "content,fixed,query,key")
PASSES = ("forward", "training")
SDPA, SDPA_CAUSAL, FLASH = "sdpa", "sdpa, is_causal", "FlashAttention"
FIELDS = (
    *("pass", "tokens", "implementation", "milliseconds", "lower_quartile", "upper_quartile"),
    *("times_first", "published_times", "memory_MiB", "memory_times_first"),
)
SPAN = 8
TISA_KERNELS = 5


class Problem(NamedTuple):
    """The problem's sizes; ``tokens`` per sentence."""

    tokens: int
    batch: int
    heads: int
    head_dim: int
    causal: bool
    dtype: str
    device: str
    threads: int
    dropout: float = 0.0


def implementations(terms: list[str], problem: Problem, with_published: bool) -> list[str]:
    """Their names; all are compared with the first one."""
    baselines = [SDPA, SDPA_CAUSAL] if problem.causal else [SDPA]
    if problem.causal and problem.device == "cuda":
        baselines = [FLASH, SDPA_CAUSAL]
    return [*baselines, *terms, *(map(_published, terms) if with_published else ())]


def _published(terms: str) -> str:
    return f"published {terms}"


def inputs(problem: Problem):
    """q, k and v, the padding mask, and the padding or causal mask as a float mask."""
    options = {"dtype": getattr(torch, problem.dtype), "device": problem.device}
    shape = (problem.batch, problem.heads, problem.tokens, problem.head_dim)
    qkv = [torch.randn(shape, **options, requires_grad=True) for _ in range(3)]
    if problem.causal:
        hidden = torch.ones(problem.tokens, problem.tokens, dtype=torch.bool).triu(1)
        padding = None
    else:  # up to a quarter of a sentence, none of the first
        quarter = torch.linspace(0, problem.tokens // 4, problem.batch).long()
        padding = torch.arange(problem.tokens) >= problem.tokens - quarter.unsqueeze(1)
        hidden = padding[:, None, None]
        padding = padding.to(problem.device)
    mask = torch.zeros(hidden.shape, **options).masked_fill_(
        hidden.to(problem.device), float("-inf")
    )
    return qkv, padding, mask


def parameters(terms: str, problem: Problem) -> tuple[dict, list]:
    """Random parameters, shared by heads as in the mixer's defaults; by name and as a list."""
    options = {"dtype": getattr(torch, problem.dtype), "device": problem.device}
    heads, d = problem.heads, problem.head_dim
    taps = SPAN + 1 if problem.causal else 2 * SPAN + 1
    shapes = {
        "content": [],
        "fixed": [(heads, taps)],
        "query": [(1, taps, d)],
        "key": [(1, taps, d)],
        "tisa": [(heads, TISA_KERNELS)] * 3,
    }
    made, tables = {}, []
    for term in terms.split(","):
        tensors = tuple(torch.randn(s, **options, requires_grad=True) for s in shapes[term])
        made[term] = None if not tensors else tensors[0] if len(tensors) == 1 else tensors
        tables += tensors
    return made, tables


def build(name: str, problem: Problem, qkv, padding, mask) -> tuple[Callable, list]:
    """The implementation as a function without arguments, and the tensors to differentiate."""
    if name == FLASH:
        return lambda: _flash(*qkv, problem.dropout), qkv
    if name in (SDPA, SDPA_CAUSAL):
        how = {"attn_mask": mask} if name == SDPA else {"is_causal": True}
        how["dropout_p"] = problem.dropout
        return lambda: F.scaled_dot_product_attention(*qkv, **how), qkv
    terms, tables = parameters(name.removeprefix("published "), problem)
    if name.startswith("published "):
        return lambda: published(*qkv, terms, mask, problem), [*qkv, *tables]
    from fairseq_convattn.ops import composite_attention

    return (
        lambda: composite_attention(
            *qkv,
            terms,
            causal=problem.causal,
            padding_mask=padding,
            dropout_p=problem.dropout,
        ),
        [*qkv, *tables],
    )


def _flash(q, k, v, dropout_p: float):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout_p)


def published(q, k, v, terms: dict, mask, problem: Problem):
    """Attention with a score tensor and, for query and key terms, a vector per pair of
    positions."""
    heads, tokens, scale = q.size(1), q.size(2), q.size(3) ** -0.5
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    position = torch.arange(tokens, device=q.device)
    distance = position - position.unsqueeze(1)
    index = distance.clamp(-SPAN, 0 if problem.causal else SPAN) + SPAN
    of_all = q.size(0), heads, tokens
    if "fixed" in terms:
        taps = terms["fixed"][:, None].expand(*of_all, -1)
        scores = scores + taps.gather(3, index.expand(*of_all, -1))
    if "query" in terms:
        vectors = F.embedding(index, terms["query"][0])
        scores = scores + torch.einsum("bhid,ijd->bhij", q, vectors) * scale
    if "key" in terms:
        vectors = F.embedding((SPAN if problem.causal else 2 * SPAN) - index, terms["key"][0])
        scores = scores + torch.einsum("bhjd,ijd->bhij", k, vectors) * scale
    if "tisa" in terms:
        a, b, c = (x.unsqueeze(-1) for x in terms["tisa"])
        every = torch.arange(1 - tokens, tokens, device=q.device)
        curve = (a * torch.exp(-b.abs() * (every - c) ** 2)).sum(1)
        curve = curve[:, None].expand(*of_all, -1)
        scores = scores + curve.gather(3, (distance + tokens - 1).expand(*of_all, -1))
    return F.dropout(torch.softmax(scores + mask, dim=-1), problem.dropout) @ v


def steps(names: list[str], which: str, problem: Problem) -> Iterator[Callable[[], None]]:
    """One step function per implementation, all on the same inputs."""
    torch.manual_seed(1)
    qkv, padding, mask = inputs(problem)
    grad = torch.randn_like(qkv[0])
    for name in names:
        compute, wanted = build(name, problem, qkv, padding, mask)
        yield _step(compute, wanted if which == "training" else None, grad)


def _step(compute: Callable, wanted: list | None, grad) -> Callable[[], None]:
    def step() -> None:
        with torch.set_grad_enabled(wanted is not None):
            y = compute()
        if wanted is not None:
            torch.autograd.grad(y, wanted, grad)

    return step


def measure_memory(which: str, name: str, problem: Problem, results) -> None:
    """Put the MiB at the peak, beyond those of the inputs, into ``results``."""
    torch.set_num_threads(problem.threads)
    (tiny,) = steps([name], which, problem._replace(tokens=4, batch=1))
    tiny()  # warm-up: libraries load code and keep memory
    (step,) = steps([name], which, problem)
    results.put(peak_memory(problem.device, step))


def measure(
    which: str, problem: Problem, terms: list[str], repetitions: int, with_published: bool
) -> Iterator[dict[str, str | float | None]]:
    """Rows of ``FIELDS``."""
    names = implementations(terms, problem, with_published)
    functions, calls = steps(names, which, problem), 1
    if problem.device == "cuda":
        functions, calls = map(graph_of, functions), GRAPH
    found = milliseconds_in_turn(functions, repetitions)
    spreads = {
        name: quartiles([each / calls for each in times])
        for name, times in zip(names, found, strict=True)
    }
    medians = {name: median for name, (_, median, _) in spreads.items()}
    isolated = isolation(problem.device)
    memory = {name: isolated(measure_memory, which, name, problem) for name in names}
    for name in names:
        lower, _, upper = spreads[name]
        slower = medians.get(_published(name))
        slower = slower and slower / medians[name]
        figures = (medians[name], lower, upper, medians[name] / medians[names[0]], slower)
        more = memory[name] / memory[names[0]] if memory[names[0]] else None
        row = (which, problem.tokens, name, *figures, memory[name], more)
        yield dict(zip(FIELDS, row, strict=True))


TABLE = Table(
    *(("pass", "<8"), ("tokens", ">6,"), ("implementation", "<33"), ("ms", ">9.2f")),
    *(("quartiles", ">17.2f"), ("x first", ">7.2f"), ("published", ">9.1f")),
    *(("MiB", ">8,.1f"), ("x first", ">7.2f")),
)


def _line(row: dict) -> str:
    return TABLE.line(
        *(row[field] for field in ("pass", "tokens", "implementation", "milliseconds")),
        (row["lower_quartile"], row["upper_quartile"]),
        *(row[field] for field in ("times_first", "published_times", "memory_MiB")),
        row["memory_times_first"],
    )


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add_names(parser, "--passes", PASSES)
    parser.add_argument(
        "--terms",
        nargs="+",
        choices=("content", *TERMS),
        default=list(TERMS),
        metavar="TERMS",
        help=f"sets of terms (default: {' '.join(TERMS)})",
    )
    parser.add_argument(
        "--tokens",
        type=lengths,
        default=[128, 512, 1024],
        help="lengths of the sentences (default: 128,512,1024)",
    )
    add_numbers(
        parser,
        ("--batch", 8, "sentences"),
        ("--heads", 12, "of the attention"),
        ("--head-dim", 64, "of each head"),
        ("--threads", os.cpu_count(), "of PyTorch"),
    )
    parser.add_argument(
        "--all-tokens", type=positive, metavar="N", help="of all sentences, instead of --batch"
    )
    parser.add_argument(
        "--causal",
        action="store_true",
        help="hide later positions, and no padding; also times is_causal=True",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32",
        help="of inputs and tables (default: float32)",
    )  # fmt: skip
    parser.add_argument(
        "--dropout", type=float, default=0.0, metavar="P", help="of attention weights (default: 0)"
    )
    add_device(parser)
    parser.add_argument(
        "--no-published", action="store_true", help="leave out the published code's way"
    )
    add_repetitions(parser)
    add_csv(parser)
    return parser


def conditions(arguments: argparse.Namespace) -> str:
    """What is measured, on what."""
    device = machine(arguments.device)
    if arguments.device == "cpu":
        device += f", {arguments.threads} threads"
    return (
        f"{setting(device)}; {_sentences(arguments)}, "
        f"{arguments.heads} heads of {arguments.head_dim}, {arguments.dtype}, "
        f"{'causal' if arguments.causal else 'padded'}, span {SPAN}, "
        f"dropout {arguments.dropout}; median and quartiles of "
        f"{arguments.repetitions} rounds, {ROUNDS}; x first: of the first one in the list; "
        f"published: how many times longer it takes for the same terms; memory beyond the inputs"
    )


def _sentences(arguments: argparse.Namespace) -> str:
    if arguments.all_tokens:
        return f"{arguments.all_tokens:,} tokens in all sentences"
    return f"batch {arguments.batch}"


def problem_of(arguments: argparse.Namespace, tokens: int) -> Problem:
    fields = {name: value for name, value in vars(arguments).items() if name in Problem._fields}
    if arguments.all_tokens:
        fields["batch"] = max(1, arguments.all_tokens // tokens)
    return Problem(**{**fields, "tokens": tokens})


def main() -> None:
    parser = command_line()
    arguments = parser.parse_args()
    if not 0 <= arguments.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, not {arguments.dropout}")
    if arguments.device == "cuda" and not importlib.util.find_spec("triton"):
        parser.error("--device cuda needs Triton: pip install triton")
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    problems = [problem_of(arguments, tokens) for tokens in arguments.tokens]
    print(f"{conditions(arguments)}\n\n{TABLE.header}")
    rows = []
    for which in arguments.passes:
        for problem in problems:
            others = arguments.repetitions, not arguments.no_published
            for row in measure(which, problem, arguments.terms, *others):
                rows.append(row)
                print(_line(row), flush=True)
                save(rows, FIELDS, arguments.csv)


if __name__ == "__main__":
    main()
