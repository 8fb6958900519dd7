"""Write a small synthetic summarization task: articles and their headlines.

    python scripts/generate_articles.py OUTPUT [--train 10000] [--valid 200] [--test 200] [--seed 1]

writes train, valid and test as ``.src`` and ``.tgt``, one article or headline a line. All
articles are distinct, and a seed gives the same test and valid sets whatever ``--train`` is.

An article comes from a place and tells three or four events. Some bear a remark, and one alone
says that its event matters, which is the event of the headline. That names the place, puts the
verb into the present and leaves out all but who did what with which thing where (or to whom):

    Tomira today : meanwhile the sailor Kado gladly hid my lamp K48 near our bridge . Mila sent
    the red hat B07 to Davo and that changes everything . the baker Dovali drew your map R55 in
    our garden and nobody noticed it .
    Tomira : Mila sends hat B07 to Davo

Which event matters cannot be guessed from its position or its words, and names and codes are as
likely one as another, so a headline needs its article.
"""

from random import Random
from typing import NamedTuple

from generate_corpus import (
    ADJECTIVES,
    ADVERBS,
    DETERMINERS,
    PEOPLE_AND_ANIMALS,
    PLACE_PREPOSITIONS,
    PLACES,
    THINGS,
    TIMES,
    TO,
    TRANSFER_VERBS,
    TRANSITIVE_VERBS,
    chance,
    draw_code,
    draw_name,
    generator_main,
    parallel_files,
    pick,
    words,
)

PRESENT = {
    "saw": "sees",
    "found": "finds",
    "followed": "follows",
    "liked": "likes",
    "drew": "draws",
    "washed": "washes",
    "carried": "carries",
    "hid": "hides",
    "remembered": "remembers",
    "moved": "moves",
    "gave": "gives",
    "sent": "sends",
    "showed": "shows",
    "sold": "sells",
}
TITLES = tuple(PEOPLE_AND_ANIMALS)[:9]

# What comes before or after an event that matters, and one that does not.
BEFORE = {
    True: ("above all ,", "most important ,", "the great news :", "what matters is that"),
    False: ("as always ,", "by the way ,", "they also say that", "meanwhile"),
}
AFTER = {
    True: (
        "and nobody will forget it",
        "which every paper will print",
        "and that changes everything",
    ),
    False: ("and nobody noticed it", "which is nothing new", "and that changes nothing"),
}
EVENTS = (3, 4)


class Event(NamedTuple):
    """What happened, at length and in a headline."""

    report: str
    headline: str


def event(
    person: str,
    verb: str,
    thing: str,
    code: str,
    preposition: str,
    where: str,
    *,
    title: str = "",
    adverb: str = "",
    determiner: str = "the",
    adjective: str = "",
    where_determiner: str = "",
) -> Event:
    """``where`` is a place or a receiver."""
    return Event(
        words(
            f"the {title}" if title else "",
            person,
            adverb,
            verb,
            determiner,
            adjective,
            thing,
            code,
            preposition,
            where_determiner,
            where,
        ),
        words(person, PRESENT[verb], thing, code, preposition, where),
    )


def remark(report: str, *, before: str = "", after: str = "") -> str:
    return words(before, report, after, ".")


def draw_event(rng: Random, person: str, receiver: str) -> Event:
    giving = chance(rng, 0.25)
    return event(
        person,
        pick(rng, TRANSFER_VERBS if giving else TRANSITIVE_VERBS),
        pick(rng, THINGS),
        draw_code(rng),
        TO if giving else pick(rng, PLACE_PREPOSITIONS),
        receiver if giving else pick(rng, PLACES),
        title=pick(rng, TITLES, 0.4),
        adverb=pick(rng, ADVERBS, 0.2),
        determiner=pick(rng, DETERMINERS),
        adjective=pick(rng, ADJECTIVES, 0.3),
        where_determiner="" if giving else pick(rng, DETERMINERS),
    )


def draw_remark(rng: Random, report: str, *, matters: bool) -> str:
    """The sentence of an event: one that matters has a remark, of the others most."""
    if not matters and chance(rng, 0.3):
        return remark(report)
    if chance(rng, 0.5):
        return remark(report, before=pick(rng, BEFORE[matters]))
    return remark(report, after=pick(rng, AFTER[matters]))


def draw_names(rng: Random, count: int) -> list[str]:
    """Distinct names."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[draw_name(rng).source] = None
    return list(names)


def draw_article(rng: Random) -> tuple[str, str]:
    """An article and its headline."""
    count = rng.choice(EVENTS)
    place, *people = draw_names(rng, 1 + 2 * count)
    events = [draw_event(rng, *people[2 * i : 2 * i + 2]) for i in range(count)]
    chosen = rng.randrange(count)
    sentences = [
        draw_remark(rng, told.report, matters=number == chosen)
        for number, told in enumerate(events)
    ]
    return (
        words(place, pick(rng, TIMES), ":", *sentences),
        words(place, ":", events[chosen].headline),
    )


def generate(sizes: dict[str, int], seed: int) -> dict[str, list[str]]:
    """The lines of every file, by file name; ``sizes`` are articles by split.

    Raises:
        ValueError: the grammar does not yield so many articles.
    """
    return parallel_files(draw_article, sizes, seed)


def main(arguments: list[str] | None = None) -> None:
    generator_main(
        generate,
        "Write a small synthetic summarization task: articles and their headlines.",
        "articles",
        {"test": 200, "valid": 200, "train": 10_000},
        arguments,
    )


if __name__ == "__main__":
    main()
