"""What systems wrote for the same sentences."""

from collections.abc import Sequence
from typing import NamedTuple

from ..scoring.generated import Texts
from .runs import Run
from .systems import Section, System

_SUBSET = "test"


class Sample(NamedTuple):
    """One sentence.

    Attributes:
        number: its place in the test set, from 1 on.
        outputs: by system, None where it wrote nothing for this sentence.
    """

    number: int
    source: str | None
    reference: str | None
    outputs: Sequence[tuple[str, str | None]]


def samples(section: Section, count: int) -> list[Sample]:
    """Sentences from all over the first test set, and what the first run of each system that
    wrote any made of them. A system with other sources has written nothing for them."""
    runs = [_run_with_texts(system) for system in section.systems]
    written = [run and run.generated[_SUBSET] for run in runs]
    first = next((texts for texts in written if texts), None)
    if first is None:
        return []
    references = next(run for run in runs if run).references.get(_SUBSET)
    if references is None or len(references) != len(first.detokenised):
        references = first.targets
    total = len(first.detokenised)
    count = min(count, total)
    places = [(2 * i + 1) * total // (2 * count) for i in range(count)]
    return [
        Sample(
            place + 1,
            first.sources[place] if first.sources else None,
            references[place] if references else None,
            [
                (system.label, _output(texts, first, place))
                for system, texts in zip(section.systems, written, strict=True)
            ],
        )
        for place in places
    ]


def _run_with_texts(system: System) -> Run | None:
    return next((run for run in system.runs if _SUBSET in run.generated), None)


def _output(texts: Texts | None, first: Texts, place: int) -> str | None:
    if texts is None or texts.sources != first.sources:
        return None
    return texts.detokenised[place]
