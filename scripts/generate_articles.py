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

import invented_language as invented
from invented_language import Dice, words

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


def draw_event(rng: Dice, person: str, receiver: str) -> tuple[str, str]:
    """Draw an event: its full sentence and its headline."""
    giving = rng.chance(0.25)
    verb = rng.pick(invented.TRANSFER_VERBS if giving else invented.TRANSITIVE_VERBS)
    thing, code = rng.pick(invented.THINGS), rng.code()
    preposition = invented.TO if giving else rng.pick(invented.PLACE_PREPOSITIONS)
    where = receiver if giving else rng.pick(invented.PLACES)
    title, adverb = rng.pick(TITLES, 0.4), rng.pick(invented.ADVERBS, 0.2)
    determiner, adjective = rng.pick(invented.DETERMINERS), rng.pick(invented.ADJECTIVES, 0.3)
    where_determiner = "" if giving else rng.pick(invented.DETERMINERS)
    report = words(
        *("the" if title else "", title, person, adverb, verb),
        *(determiner, adjective, thing, code, preposition, where_determiner, where),
    )
    return report, words(person, PRESENT[verb], thing, code, preposition, where)


def draw_remark(rng: Dice, report: str, matters: bool) -> str:
    """The sentence of an event. The one that matters has a remark, as have most others."""
    if not matters and rng.chance(0.3):
        return f"{report} ."
    if rng.chance(0.5):
        return f"{rng.pick(BEFORE[matters])} {report} ."
    return f"{report} {rng.pick(AFTER[matters])} ."


def draw_article(rng: Dice) -> tuple[str, str]:
    """Draw an article and its headline."""
    count = rng.choice((3, 4))
    names: dict[str, None] = {}  # distinct, in their order
    while len(names) < 1 + 2 * count:
        names[rng.name()] = None
    place, *people = names
    events = [draw_event(rng, *people[2 * i : 2 * i + 2]) for i in range(count)]
    chosen = rng.randrange(count)
    sentences = [draw_remark(rng, report, i == chosen) for i, (report, _) in enumerate(events)]
    _, headline = events[chosen]
    return words(place, rng.pick(invented.TIMES), ":", *sentences), f"{place} : {headline}"


generate = functools.partial(invented.parallel_files, draw_article)

if __name__ == "__main__":
    invented.main(generate, __doc__, test=200, valid=200, train=10_000)
