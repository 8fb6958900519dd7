"""The aims on a GPU, and which of them the rows of gpu_acceptance.py's steps meet."""

import itertools
from collections.abc import Iterator

CHANNELS, HEADS = 1024, 16
SIZES, LENGTHS, ATTENTION_LENGTHS = (3, 7, 15, 31), (256, 1024, 4096), (512, 2048)
PASSES = ("forward", "training")
# times of FlashAttention, by pass
COMPOSITE_AIMS = {
    "content,fixed": (1.10, 1.25),
    "content,tisa": (1.10, 1.25),
    "content,fixed,query": (1.4, 1.4),
}


def aims(records: list[dict]) -> list[dict]:
    """A row for every aim: the worst of what was measured for it, and whether it is met."""
    return [
        *_convolution_aims(records),
        *_aims_beside_libraries(records),
        *_composite_aims(records),
        *_short_aims(records),
        *_model_aims(records),
    ]


Figures = dict[tuple[str, ...], float]


def _figures(records: list[dict], step: str, fields: str, value: str) -> Figures:
    """A column of a step's rows by the values of other columns."""
    rows = next((record["rows"] for record in records if record["name"] == step), [])
    keyed = ((tuple(row[field] for field in fields.split()), row[value]) for row in rows)
    return {key: float(figure) for key, figure in keyed if figure}


def _ratio(figures: Figures, case: tuple[str, ...], name: str, other: str) -> float | None:
    """The figure of one implementation or model in terms of another's."""
    mine, others = figures.get((*case, name)), figures.get((*case, other))
    return mine / others if mine and others else None


def _verdict(aim: str, bound: float, values: list[float | None], least: bool = False) -> dict:
    """Whether all values are within the bound: the most, or the ``least``, that is allowed."""
    known = [value for value in values if value is not None]
    worst = (min if least else max)(known, default=None)
    if worst is not None and (worst < bound if least else worst > bound):
        met = "no"
    else:
        met = "yes" if len(known) == len(values) else "not measured"
    wanted = f"{bound:.2f} or {'more' if least else 'less'}"
    shown = "" if worst is None else f"{worst:#.4g}"
    measured = f"{len(known)} of {len(values)}"
    return {"aim": aim, "wanted": wanted, "worst": shown, "measured": measured, "met": met}


def _convolution_aims(records: list[dict]) -> Iterator[dict]:
    """Shares of the memory bandwidth, at which all tensors of a copy or a convolution pass once;
    and times of the attention that PyTorch chooses."""
    for step, of_tap in (("convolutions", HEADS), ("lightweight", 0)):
        took = _figures(records, step, "pass kernel_size tokens implementation", "milliseconds")
        for which, size in itertools.product(PASSES, SIZES):
            channels, taps, bound = (2, 1, 0.7) if which == "forward" else (5, 3, 0.6)
            copies = (channels * CHANNELS + taps * of_tap * size) / (2 * CHANNELS)
            cases = [(which, str(size), str(tokens)) for tokens in LENGTHS]
            rates = [_ratio(took, case, "copy", "triton") for case in cases]
            shares = [rate and copies * rate for rate in rates]
            name = f"{'dynamic' if of_tap else 'lightweight'}, {size} taps, {which}"
            yield _verdict(f"{name}: share of the memory bandwidth", bound, shares, least=True)
            times = [_ratio(took, case, "triton", "attention") for case in cases]
            yield _verdict(f"{name}: x PyTorch's attention's time", 1, times)


def _aims_beside_libraries(records: list[dict]) -> Iterator[dict]:
    fields = "convolution pass kernel_size implementation"
    works = (
        ("causal-conv1d", "taps", "lightweight"),
        ("dynamic-conv1d", "dynamic-conv1d", "dynamic"),
    )
    for (library, step, convolution), which in itertools.product(works, PASSES):
        took = _figures(records, step, fields, "milliseconds")
        cases = [(convolution, which, size) for size in ("3", "4")]
        times = [_ratio(took, case, "triton", library) for case in cases]
        yield _verdict(f"{convolution}, 3 and 4 taps, {which}: x {library}'s time", 1, times)


def _composite_aims(records: list[dict]) -> Iterator[dict]:
    took = _figures(records, "composite", "pass tokens implementation", "milliseconds")
    for terms, bounds in COMPOSITE_AIMS.items():
        for which, bound in zip(PASSES, bounds, strict=True):
            cases = [(which, str(tokens)) for tokens in ATTENTION_LENGTHS]
            times = [_ratio(took, case, terms, "FlashAttention") for case in cases]
            yield _verdict(f"{terms}, {which}: x FlashAttention's time", bound, times)


def _short_aims(records: list[dict]) -> Iterator[dict]:
    took = _figures(records, "short", "pass part kind", "ms")
    for kind in ("static", "headwise", "low_rank"):
        aim = f"a layer with {kind} short convolutions, training: x its time without"
        yield _verdict(aim, 1.1, [_ratio(took, ("training", "layer"), kind, "none")])


def _model_aims(records: list[dict]) -> Iterator[dict]:
    trained = _figures(records, "translators", "task model", "tokens_per_second")
    speed = _ratio(trained, ("translation",), "dynamic", "attention")
    name = "dynamic_conv_wmt_en_de_big"
    yield _verdict(f"{name}, training: x attention's tokens/s", 1.1, [speed], least=True)
    decoded = _figures(records, "decoding", "architecture", "sentences_per_second")
    speed = _ratio(decoded, (), name, "attention_wmt_en_de_big")
    yield _verdict(f"{name}, decoding: x attention's sentences/s", 1.2, [speed], least=True)
