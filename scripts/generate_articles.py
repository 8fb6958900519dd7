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

import functools
from random import Random

import invented_language as invented

PRESENT = invented.lexicon(
    "saw sees, found finds, followed follows, liked likes, drew draws, washed washes,"
    "carried carries, hid hides, remembered remembers, moved moves,"
    "gave gives, sent sends, showed shows, sold sells"
)
TITLES = tuple(invented.PEOPLE_AND_ANIMALS)[:9]

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


def draw_event(rng: Random, person: str, receiver: str) -> tuple[str, str]:
    """What happened, at length and in a headline."""
    giving = invented.chance(rng, 0.25)
    verb = invented.pick(rng, invented.TRANSFER_VERBS if giving else invented.TRANSITIVE_VERBS)
    thing, code = invented.pick(rng, invented.THINGS), invented.draw_code(rng)
    preposition = invented.TO if giving else invented.pick(rng, invented.PLACE_PREPOSITIONS)
    where = receiver if giving else invented.pick(rng, invented.PLACES)
    title, adverb = invented.pick(rng, TITLES, 0.4), invented.pick(rng, invented.ADVERBS, 0.2)
    determiner, adjective = (
        invented.pick(rng, invented.DETERMINERS),
        invented.pick(rng, invented.ADJECTIVES, 0.3),
    )
    where_determiner = "" if giving else invented.pick(rng, invented.DETERMINERS)
    report = invented.words(
        *("the" if title else "", title, person, adverb, verb),
        *(determiner, adjective, thing, code, preposition, where_determiner, where),
    )
    return report, invented.words(person, PRESENT[verb], thing, code, preposition, where)


def draw_remark(rng: Random, report: str, matters: bool) -> str:
    """The sentence of an event: one that matters has a remark, of the others most."""
    if not matters and invented.chance(rng, 0.3):
        return invented.words(report, ".")
    if invented.chance(rng, 0.5):
        return invented.words(invented.pick(rng, BEFORE[matters]), report, ".")
    return invented.words(report, invented.pick(rng, AFTER[matters]), ".")


def draw_names(rng: Random, count: int) -> list[str]:
    """Distinct names."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[invented.draw_name(rng)] = None
    return list(names)


def draw_article(rng: Random) -> tuple[str, str]:
    """An article and its headline."""
    count = rng.choice((3, 4))
    place, *people = draw_names(rng, 1 + 2 * count)
    events = [draw_event(rng, *people[2 * i : 2 * i + 2]) for i in range(count)]
    chosen = rng.randrange(count)
    sentences = [draw_remark(rng, report, i == chosen) for i, (report, _) in enumerate(events)]
    _, headline = events[chosen]
    return invented.words(
        place, invented.pick(rng, invented.TIMES), ":", *sentences
    ), invented.words(place, ":", headline)


generate = functools.partial(invented.parallel_files, draw_article)


def main(arguments: list[str] | None = None) -> None:
    invented.generator_main(
        generate, __doc__, {"test": 200, "valid": 200, "train": 10_000}, arguments
    )


if __name__ == "__main__":
    main()
