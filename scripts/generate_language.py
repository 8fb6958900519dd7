"""Write text in an invented language of which the best possible perplexity is known.

    python scripts/generate_language.py OUTPUT [--train 100000] [--valid 500] [--test 1000]
        [--seed 1]

writes train, valid and test as ``.txt``, one sentence a line, and ``entropy.json``:

    {"test": {"tokens": ..., "bits_per_token": ..., "perplexity": ...}, "valid": ..., "train": ...}

They say how well the language's own probabilities predict the very text of a split, which no
model can beat but by luck. A token is a word or the end of a sentence, as fairseq-eval-lm counts
them with ``--sample-break-mode eos``. Sentences are independent draws, so they may recur, and a
seed gives the same test and valid sets whatever ``--train`` is.

``invented_language.py`` describes the language; names and codes are left out. What comes next
depends on more than the previous word: a verb agrees in class and number with its subject, up to
15 words earlier, and each object goes with a few verbs alone.
"""

import json
import math
from collections.abc import Iterable
from random import Random
from typing import NamedTuple, Union

import invented_language as invented


class Choice(NamedTuple):
    """One of the phrases, each with its probability."""

    phrases: tuple["Phrase", ...]
    probabilities: tuple[float, ...]


# A word, phrases one after the other, or a choice.
Phrase = Union[str, tuple["Phrase", ...], Choice]  # noqa: UP007  (| takes no string)


def one_of(phrases: Iterable[Phrase]) -> Choice:
    """Equally likely phrases."""
    phrases = tuple(phrases)
    return Choice(phrases, (1 / len(phrases),) * len(phrases))


def perhaps(probability: float, phrase: Phrase) -> Choice:
    return Choice((phrase, ()), (probability, 1 - probability))


def draw(rng: Random, phrase: Phrase) -> tuple[list[str], float]:
    """The words of a random ``phrase``, and -log2 of the probability of what was chosen."""
    if isinstance(phrase, str):
        return [phrase], 0.0
    if isinstance(phrase, Choice):
        (index,) = rng.choices(range(len(phrase.phrases)), phrase.probabilities)
        words, bits = draw(rng, phrase.phrases[index])
        return words, bits - math.log2(phrase.probabilities[index])
    parts = [draw(rng, part) for part in phrase]
    return [word for words, _ in parts for word in words], sum(bits for _, bits in parts)


def noun_phrase(noun: str, plural: bool) -> Phrase:
    """``noun`` is an English word, as in the functions below."""
    stem, noun_class = invented.NOUNS[noun]
    ending = invented.ENDINGS[noun_class][plural]
    return (
        one_of(stem + ending for stem in invented.DETERMINERS.values()),
        stem + invented.NOUN_PLURAL * plural,
        perhaps(0.4, one_of(stem + ending for stem in invented.ADJECTIVES.values())),
    )


def any_noun_phrase(*nouns: str) -> Phrase:
    return one_of(noun_phrase(noun, plural) for noun in nouns for plural in (False, True))


def predicate(
    nouns: Iterable[str], verbs: dict[str, str], verbs_per_noun: int, adverb: float, ending: str
) -> Phrase:
    """An object, with probability ``adverb`` an adverb, and one of the verbs that go with it.

    The n-th noun takes ``verbs_per_noun`` of the ``verbs``, from the n-th on.
    """
    stems = tuple(verbs.values())
    adverbs = [perhaps(adverb, one_of(invented.ADVERBS.values()))] if adverb else []
    return one_of(
        (
            any_noun_phrase(noun),
            *adverbs,
            one_of(stems[(n + i) % len(stems)] + ending for i in range(verbs_per_noun)),
        )
        for n, noun in enumerate(nouns)
    )


def clause(noun: str, plural: bool) -> Phrase:
    """Subject, perhaps with a relative clause, and what it does."""
    ending = invented.ENDINGS[invented.NOUNS[noun][1]][plural]  # of its verbs
    place = one_of(invented.POSTPOSITIONS[word] for word in invented.PLACE_PREPOSITIONS)
    objects = (*invented.PEOPLE_AND_ANIMALS, *invented.THINGS)
    acting = (
        perhaps(0.5, (any_noun_phrase(*invented.PLACES), place)),
        predicate(objects, invented.TRANSITIVE_VERBS, 3, 0.3, ending),
    )
    giving = (
        any_noun_phrase(*invented.PEOPLE_AND_ANIMALS),
        invented.POSTPOSITIONS[invented.TO],
        predicate(invented.THINGS, invented.TRANSFER_VERBS, 2, 0.3, ending),
    )
    relative = predicate(objects, invented.TRANSITIVE_VERBS, 3, 0.0, ending)
    return (
        noun_phrase(noun, plural),
        perhaps(0.3, (invented.RELATIVE, relative)),
        Choice((acting, giving), (0.7, 0.3)),
    )


def sentence() -> Phrase:
    """The grammar. It is unambiguous: each sentence has one derivation."""
    people = invented.PEOPLE_AND_ANIMALS
    clauses = one_of(clause(noun, plural) for noun in people for plural in (False, True))
    return perhaps(0.35, one_of(invented.TIMES.values())), clauses


def generate(sizes: dict[str, int], seed: int) -> invented.Files:
    """The lines of every file, by file name; ``sizes`` are sentences by split."""
    rng, grammar = Random(seed), sentence()
    files, report = {}, {}
    for split, size in sizes.items():
        sentences, bits = zip(*(draw(rng, grammar) for _ in range(size)), strict=True)
        files[f"{split}.txt"] = [" ".join(words) for words in sentences]
        tokens = sum(len(words) + 1 for words in sentences)
        rate = math.fsum(bits) / tokens
        report[split] = {
            "tokens": tokens,
            "bits_per_token": round(rate, 6),
            "perplexity": round(2**rate, 6),
        }
    return files | {"entropy.json": json.dumps(report, indent=2).splitlines()}


if __name__ == "__main__":
    invented.main(generate, __doc__, test=1000, valid=500, train=100_000)
