"""What systems wrote for the same sentences."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..scoring.generated import read_texts
from .runs import Run
from .systems import Section

_SUBSET = "test"


class Sample(NamedTuple):
    """One sentence.

    Attributes:
        number: its place in the test set, from 1 on.
        texts: source, reference and outputs by name; None where there is none.
    """

    number: int
    texts: Sequence[tuple[str, str | None]]


def samples(section: Section, count: int) -> list[Sample]:
    """Sentences from all over the first test set, and what the first run of each system that
    wrote any made of them. A system with other sources has written nothing for them."""
    written = {
        system.label: next((run for run in system.runs if _SUBSET in run.generated), None)
        for system in section.systems
    }
    first = next(filter(None, written.values()), None)
    if first is None:
        return []
    texts = first.generated[_SUBSET]
    columns = {"source": texts.sources, "reference": _references(first)}
    for label, run in written.items():
        found = run and run.generated[_SUBSET]
        columns[label] = found.detokenised if found and found.sources == texts.sources else None
    total = len(texts.detokenised)
    count = min(count, total)
    places = [(2 * i + 1) * total // (2 * count) for i in range(count)]
    return [
        Sample(place + 1, [(name, lines and lines[place]) for name, lines in columns.items()])
        for place in places
    ]


def _references(run: Run) -> Sequence[str] | None:
    """The original text where it still is, or what fairseq-generate printed of it."""
    texts = run.generated[_SUBSET]
    for scoring in run.scorings.get(_SUBSET, ())[:1]:
        path = Path(scoring["--reference"])
        if path.is_file():
            references = read_texts(path).detokenised
            if len(references) == len(texts.detokenised):
                return references
    return texts.targets
