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
from random import Random
from typing import NamedTuple

import invented_language as invented

SENTENCE_WORDS = range(4, 17)


class Phrase(NamedTuple):
    """Words in both languages, and the ending of what agrees with them."""

    source: str = ""
    target: str = ""
    ending: str = ""


def draw_person(rng: Random) -> Phrase:
    name = invented.draw_name(rng)
    return Phrase(name, name, invented.ENDINGS["sun"][0])


def draw_noun_phrase(
    rng: Random, nouns: Iterable[str], adjective: float = 0.0, code: float = 0.0
) -> Phrase:
    """``adjective`` and ``code`` are probabilities; only singular nouns have codes."""
    plural = invented.chance(rng, 0.5)
    numbered = not plural and invented.chance(rng, code)
    determiner, noun = invented.pick(rng, invented.DETERMINERS), invented.pick(rng, nouns)
    described = invented.pick(rng, invented.ADJECTIVES, adjective)
    number = invented.draw_code(rng) if numbered else ""
    stem, noun_class = invented.NOUNS[noun]
    ending = invented.ENDINGS[noun_class][plural]
    return Phrase(
        invented.words(determiner, described, noun + "s" * plural, number),
        invented.words(
            invented.DETERMINERS[determiner] + ending,
            stem + invented.NOUN_PLURAL * plural,
            described and invented.ADJECTIVES[described] + ending,
            number,
        ),
        ending,
    )


def draw_subject(rng: Random) -> Phrase:
    if invented.chance(rng, 0.3):
        return draw_person(rng)
    head = draw_noun_phrase(rng, invented.PEOPLE_AND_ANIMALS, adjective=0.4)
    if invented.chance(rng, 0.75):
        return head
    thing = draw_person(rng) if invented.chance(rng, 0.4) else draw_noun_phrase(rng, invented.NOUNS)
    verb = invented.pick(rng, invented.TRANSITIVE_VERBS)
    return Phrase(
        invented.words(head.source, "who", verb, thing.source),
        invented.words(
            head.target, invented.RELATIVE, thing.target, invented.VERBS[verb] + head.ending
        ),
        head.ending,
    )


def adposition(preposition: str, phrase: Phrase) -> Phrase:
    return Phrase(
        invented.words(preposition, phrase.source),
        invented.words(phrase.target, invented.POSTPOSITIONS[preposition]),
    )


def draw_giving(rng: Random) -> tuple[str, Phrase, Phrase]:
    """Verb, object and receiver."""
    verb = invented.pick(rng, invented.TRANSFER_VERBS)
    thing = draw_noun_phrase(rng, invented.THINGS, adjective=0.4, code=0.7)
    named = invented.chance(rng, 0.5)
    receiver = draw_person(rng) if named else draw_noun_phrase(rng, invented.PEOPLE_AND_ANIMALS)
    return verb, thing, adposition(invented.TO, receiver)


def draw_action(rng: Random) -> tuple[str, Phrase, Phrase]:
    """Verb, object and place, which may be empty."""
    verb = invented.pick(rng, invented.TRANSITIVE_VERBS)
    if invented.chance(rng, 0.25):
        thing = draw_person(rng)
    elif invented.chance(rng, 0.6):
        thing = draw_noun_phrase(rng, invented.THINGS, adjective=0.4, code=0.7)
    else:
        thing = draw_noun_phrase(rng, invented.PEOPLE_AND_ANIMALS, adjective=0.4)
    if not invented.chance(rng, 0.5):
        return verb, thing, Phrase()
    place = draw_noun_phrase(rng, invented.PLACES, code=0.7)
    return verb, thing, adposition(invented.pick(rng, invented.PLACE_PREPOSITIONS), place)


def draw_sentence(rng: Random) -> tuple[str, str]:
    """A sentence of ``SENTENCE_WORDS`` in English and in the invented language."""
    source = target = ""
    while len(source.split()) not in SENTENCE_WORDS:
        subject = draw_subject(rng)
        verb, thing, where = (draw_giving if invented.chance(rng, 0.3) else draw_action)(rng)
        adverb, time = (
            invented.pick(rng, invented.ADVERBS, 0.3),
            invented.pick(rng, invented.TIMES, 0.35),
        )
        source = invented.words(subject.source, adverb, verb, thing.source, where.source, time)
        target = invented.words(
            invented.TIMES.get(time, ""),
            *(subject.target, where.target, thing.target),
            invented.ADVERBS.get(adverb, ""),
            invented.VERBS[verb] + subject.ending,
        )
    return source, target


generate = functools.partial(invented.parallel_files, draw_sentence)


def main(arguments: list[str] | None = None) -> None:
    invented.generator_main(
        generate, __doc__, {"test": 200, "valid": 200, "train": 6000}, arguments
    )


if __name__ == "__main__":
    main()
