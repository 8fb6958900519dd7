"""Write a small synthetic translation task: plain English into an invented language.

    python scripts/generate_corpus.py OUTPUT [--train 6000] [--valid 200] [--test 200] [--seed 1]

writes train, valid and test as ``.src`` and ``.tgt``, one sentence a line. All source
sentences are distinct, and a seed gives the same test and valid sets whatever ``--train`` is.
``invented_language.py`` describes the language:

    the old sailors who saw Tomira quietly hid my lamp K48 near our bridges yesterday
    heven lon marubi gelton ki Tomira sivon sen taludi ber me sopal K48 nuli dakron
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import invented_language as invented
from invented_language import Dice, words


class Phrase(NamedTuple):
    """Words in both languages, and the ending of words that agree with them."""

    source: str = ""
    target: str = ""
    ending: str = ""


def draw_person(rng: Dice) -> Phrase:
    name = rng.name()
    return Phrase(name, name, invented.ENDINGS["sun"][0])


def draw_noun_phrase(
    rng: Dice, nouns: Iterable[str], adjective: float = 0.0, code: float = 0.0
) -> Phrase:
    """``adjective`` and ``code`` are probabilities; only singular nouns have codes."""
    plural = rng.chance(0.5)
    numbered = not plural and rng.chance(code)
    determiner, noun = rng.pick(invented.DETERMINERS), rng.pick(nouns)
    described = rng.pick(invented.ADJECTIVES, adjective)
    number = rng.code() if numbered else ""
    stem, noun_class = invented.NOUNS[noun]
    ending = invented.ENDINGS[noun_class][plural]
    after = described and invented.ADJECTIVES[described] + ending
    source = words(determiner, described, noun + "s" * plural, number)
    stems = (invented.DETERMINERS[determiner] + ending, stem + invented.NOUN_PLURAL * plural)
    return Phrase(source, words(*stems, after, number), ending)


def draw_subject(rng: Dice) -> Phrase:
    if rng.chance(0.3):
        return draw_person(rng)
    head = draw_noun_phrase(rng, invented.PEOPLE_AND_ANIMALS, adjective=0.4)
    if rng.chance(0.75):
        return head
    thing = draw_person(rng) if rng.chance(0.4) else draw_noun_phrase(rng, invented.NOUNS)
    verb = rng.pick(invented.TRANSITIVE_VERBS)
    target = (head.target, invented.RELATIVE, thing.target, invented.VERBS[verb] + head.ending)
    return Phrase(words(head.source, "who", verb, thing.source), words(*target), head.ending)


def draw_predicate(rng: Dice) -> tuple[str, Phrase, str, Phrase]:
    """Verb, object, and the preposition of receiver or place with it, which may be empty."""
    people = invented.PEOPLE_AND_ANIMALS
    if rng.chance(0.3):
        verb = rng.pick(invented.TRANSFER_VERBS)
        thing = draw_noun_phrase(rng, invented.THINGS, adjective=0.4, code=0.7)
        receiver = draw_person(rng) if rng.chance(0.5) else draw_noun_phrase(rng, people)
        return verb, thing, invented.TO, receiver
    verb = rng.pick(invented.TRANSITIVE_VERBS)
    if rng.chance(0.25):
        thing = draw_person(rng)
    elif rng.chance(0.6):
        thing = draw_noun_phrase(rng, invented.THINGS, adjective=0.4, code=0.7)
    else:
        thing = draw_noun_phrase(rng, people, adjective=0.4)
    if not rng.chance(0.5):
        return verb, thing, "", Phrase()
    place = draw_noun_phrase(rng, invented.PLACES, code=0.7)
    return verb, thing, rng.pick(invented.PLACE_PREPOSITIONS), place


def draw_sentence(rng: Dice) -> tuple[str, str]:
    """A sentence of 4 to 16 words in English and in the invented language."""
    source = target = ""
    while not 4 <= len(source.split()) <= 16:
        subject = draw_subject(rng)
        verb, thing, preposition, place = draw_predicate(rng)
        adverb, time = rng.pick(invented.ADVERBS, 0.3), rng.pick(invented.TIMES, 0.35)
        english = (subject.source, adverb, verb, thing.source, preposition, place.source, time)
        source = words(*english)
        target = words(
            *(invented.TIMES.get(time, ""), subject.target),
            *(place.target, invented.POSTPOSITIONS.get(preposition, "")),
            *(thing.target, invented.ADVERBS.get(adverb, "")),
            invented.VERBS[verb] + subject.ending,
        )
    return source, target


generate = functools.partial(invented.parallel_files, draw_sentence)

if __name__ == "__main__":
    invented.main(generate, __doc__, test=200, valid=200, train=6000)
