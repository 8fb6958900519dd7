"""What an analysis found, in sentences."""

from collections.abc import Iterator
from statistics import fmean

from .checkpoint import layer_names


def findings(stack: dict) -> Iterator[str]:
    """Sentences about a stack.

    Args:
        stack: what :func:`checkpoint.analysis` says of it.
    """
    if stack["positions"]:
        yield _of_positions(stack["positions"])
    if stack["attention"]:
        yield from _of_attention(stack["attention"])
    for term, by_layer in stack["terms"].items():
        yield _of_term(term, by_layer)
    for convolved, by_layer in stack["kernels"].items():
        yield _of_kernels(convolved, by_layer)


def _of_positions(positions: dict) -> str:
    shape = f"{positions['number']} {positions['kind']} positions, {positions['width']} wide"
    r2 = positions["r2"]["overall"]
    if r2 is None:
        return f"The {shape}, are all the same."
    noise = positions["white_noise_r2"]["overall"]
    return (
        f"The {shape}, have R^2 = {r2:.2f} with their best Toeplitz fit; white noise of this "
        f"shape has {noise:.2f}."
    )


def _of_attention(attention: list[dict]) -> Iterator[str]:
    r2 = {
        (tuple(layer["layers"]), head): values["overall"]
        for layer in attention
        for head, values in enumerate(layer["heads"])
        if values["overall"] is not None
    }
    if r2:
        lowest, highest = min(r2, key=r2.get), max(r2, key=r2.get)
        yield (
            f"The {len(r2)} heads have R^2 = {fmean(r2.values()):.2f} on average, from "
            f"{r2[lowest]:.2f} ({_place(*lowest)}) to {r2[highest]:.2f} ({_place(*highest)})."
        )


def _of_term(term: str, by_layer: list[dict]) -> str:
    peaks = {}  # of every head, where its curve is highest, and how high
    for curves in by_layer:
        for head, values in enumerate(curves["heads"]):
            top = max(range(len(values)), key=values.__getitem__)
            peaks[tuple(curves["layers"]), head] = (curves["distances"][top], values[top])
    distances = [distance for distance, _ in peaks.values()]
    before, after = sum(x < 0 for x in distances), sum(x > 0 for x in distances)
    place = max(peaks, key=lambda place: peaks[place][1])
    distance, value = peaks[place]
    return (
        f"The {term} term ({_all_layers(by_layer)}) is highest at the position itself in "
        f"{len(peaks) - before - after} of {len(peaks)} heads, before it in {before} and after it "
        f"in {after}. The highest value is {value:.2f}, at distance {distance:+d} "
        f"({_place(*place)})."
    )


def _of_kernels(convolved: str, by_layer: list[dict]) -> str:
    """The mean distance of a layer's taps, each weighted by its size."""
    reach = {}
    for kernels in by_layer:
        weights = [abs(weight) for taps in kernels["heads"] for weight in taps]
        far = [abs(distance) for distance in kernels["distances"]] * len(kernels["heads"])
        total = sum(weights) or 1
        reach[layer_names(kernels["layers"])] = (
            sum(x * y for x, y in zip(weights, far, strict=True)) / total
        )
    distances = ", ".join(f"{distance:.1f} in {layers}" for layers, distance in reach.items())
    return f"Lightweight convolutions of the {convolved} look this far on average: {distances}."


def _all_layers(by_layer: list[dict]) -> str:
    return layer_names(sorted(layer for curves in by_layer for layer in curves["layers"]))


def _place(layers: tuple[int, ...], head: int) -> str:
    return f"{layer_names(layers)}, head {head}"
