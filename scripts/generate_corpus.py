"""Write a small synthetic translation task: plain English into an invented language.

    python scripts/generate_corpus.py OUTPUT [--train 6000] [--valid 200] [--test 200] [--seed 1]

writes train, valid and test as ``.src`` and ``.tgt``, one sentence a line. All source
sentences are distinct, and a seed gives the same test and valid sets whatever ``--train`` is.

The invented language puts the time first and the verb last (subject, place or receiver,
object, adverb, verb), adjectives after nouns, and has postpositions for prepositions. Every
noun is of class sun, moon or stone, which neither language shows on the noun; determiners,
adjectives and verbs end in -a, -o or -e for the class, with -n for the plural. Nouns take -i
in the plural. Proper names (class sun) and codes are the same in both languages:

    the old sailors who saw Tomira quietly hid my lamp K48 near our bridges yesterday
    heven lon marubi gelton ki Tomira sivon sen taludi ber me sopal K48 nuli dakron
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

SUN, MOON, STONE = "sun", "moon", "stone"
ENDINGS = {SUN: ("a", "an"), MOON: ("o", "on"), STONE: ("e", "en")}
NOUN_PLURAL = "i"
RELATIVE = "ki"

PEOPLE_AND_ANIMALS = {
    "baker": ("dorim", SUN),
    "sailor": ("marub", MOON),
    "doctor": ("kelos", STONE),
    "teacher": ("vitan", SUN),
    "farmer": ("gurem", MOON),
    "painter": ("solik", STONE),
    "singer": ("bavet", SUN),
    "gardener": ("nirog", MOON),
    "neighbour": ("hadul", STONE),
    "dog": ("tubar", SUN),
    "cat": ("misol", MOON),
    "horse": ("rakem", STONE),
    "bird": ("pilev", SUN),
    "goat": ("zogan", MOON),
    "bear": ("urtik", STONE),
}
THINGS = {
    "boat": ("lerod", SUN),
    "letter": ("fimas", MOON),
    "lamp": ("sopal", STONE),
    "coat": ("gavir", SUN),
    "book": ("netuk", MOON),
    "chair": ("bodel", STONE),
    "drum": ("tamog", SUN),
    "map": ("ravis", MOON),
    "basket": ("kudon", STONE),
    "ladder": ("hipet", SUN),
    "bottle": ("zelum", MOON),
    "clock": ("dinak", STONE),
    "hat": ("mopir", SUN),
    "bell": ("tilon", MOON),
}
PLACES = {
    "house": ("varem", STONE),
    "garden": ("lisot", SUN),
    "river": ("nawel", MOON),
    "market": ("pogur", STONE),
    "forest": ("sedim", SUN),
    "bridge": ("talud", STONE),
    "tower": ("korev", MOON),
    "school": ("bimas", SUN),
    "mill": ("rudak", MOON),
    "lake": ("fenol", STONE),
}
NOUNS = PEOPLE_AND_ANIMALS | THINGS | PLACES

DETERMINERS = {"the": "l", "my": "m", "your": "t", "our": "s"}
ADJECTIVES = {
    "old": "gelt",
    "young": "firn",
    "small": "mosk",
    "big": "vard",
    "red": "rusp",
    "blue": "helm",
    "green": "zint",
    "heavy": "dorg",
    "strange": "kulv",
    "quiet": "pamb",
    "clean": "tesk",
    "lost": "bilt",
}
TRANSITIVE_VERBS = {
    "saw": "siv",
    "found": "tobr",
    "followed": "ganz",
    "liked": "melk",
    "drew": "pirt",
    "washed": "lusk",
    "carried": "hond",
    "hid": "dakr",
    "remembered": "veng",
    "moved": "rolt",
}
TRANSFER_VERBS = {"gave": "nemb", "sent": "fust", "showed": "kilp", "sold": "zart"}
VERBS = TRANSITIVE_VERBS | TRANSFER_VERBS
TO = "to"
POSTPOSITIONS = {TO: "vo", "in": "ni", "near": "ber", "behind": "dus", "from": "gal"}
PLACE_PREPOSITIONS = tuple(word for word in POSTPOSITIONS if word != TO)
ADVERBS = {"quietly": "nuli", "slowly": "pesa", "often": "rimo", "gladly": "tevu"}
TIMES = {"yesterday": "heven", "today": "sulen", "recently": "bralen", "early": "odrin"}

SYLLABLES = tuple(consonant + vowel for consonant in "bdklmnprtv" for vowel in "aio")
CODE_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"

SENTENCE_WORDS = range(4, 17)
MOST_PAIRS = 1_000_000
DRAWS_PER_PAIR = 10


class Phrase(NamedTuple):
    """Words in both languages, and the ending of what agrees with them."""

    source: str
    target: str
    ending: str = ""


NOTHING = Phrase("", "")


def words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def proper_name(name: str) -> Phrase:
    return Phrase(name, name, ENDINGS[SUN][0])


def noun_phrase(
    determiner: str, noun: str, *, plural: bool = False, adjective: str = "", code: str = ""
) -> Phrase:
    """``noun`` and ``adjective`` are English; an empty adjective or code is left out."""
    stem, noun_class = NOUNS[noun]
    ending = ENDINGS[noun_class][plural]
    return Phrase(
        words(determiner, adjective, noun + "s" if plural else noun, code),
        words(
            DETERMINERS[determiner] + ending,
            stem + NOUN_PLURAL if plural else stem,
            ADJECTIVES[adjective] + ending if adjective else "",
            code,
        ),
        ending,
    )


def relative_clause(head: Phrase, verb: str, thing: Phrase) -> Phrase:
    return Phrase(
        words(head.source, "who", verb, thing.source),
        words(head.target, RELATIVE, thing.target, VERBS[verb] + head.ending),
        head.ending,
    )


def adposition(preposition: str, phrase: Phrase) -> Phrase:
    return Phrase(
        words(preposition, phrase.source), words(phrase.target, POSTPOSITIONS[preposition])
    )


def sentence(
    subject: Phrase,
    verb: str,
    thing: Phrase,
    *,
    where: Phrase = NOTHING,
    adverb: str = "",
    time: str = "",
) -> tuple[str, str]:
    """The source and target sentence; ``verb``, ``adverb`` and ``time`` are English."""
    return (
        words(subject.source, adverb, verb, thing.source, where.source, time),
        words(
            TIMES.get(time, ""),
            subject.target,
            where.target,
            thing.target,
            ADVERBS.get(adverb, ""),
            VERBS[verb] + subject.ending,
        ),
    )


def chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def pick(rng: Random, options: Iterable[str], probability: float = 1.0) -> str:
    """One of ``options``, or with 1 - ``probability`` the empty string."""
    return rng.choice(tuple(options)) if chance(rng, probability) else ""


def draw_name(rng: Random) -> Phrase:
    syllables = rng.choices(SYLLABLES, k=rng.choice((2, 3)))
    return proper_name("".join(syllables).capitalize())


def draw_code(rng: Random) -> str:
    return f"{rng.choice(CODE_LETTERS)}{rng.randrange(100):02}"


def draw_noun_phrase(
    rng: Random, nouns: Iterable[str], *, adjective: float = 0.0, code: float = 0.0
) -> Phrase:
    """``adjective`` and ``code`` are probabilities; only singular nouns have codes."""
    plural = chance(rng, 0.5)
    numbered = not plural and chance(rng, code)
    return noun_phrase(
        pick(rng, DETERMINERS),
        pick(rng, nouns),
        plural=plural,
        adjective=pick(rng, ADJECTIVES, adjective),
        code=draw_code(rng) if numbered else "",
    )


def draw_subject(rng: Random) -> Phrase:
    if chance(rng, 0.3):
        return draw_name(rng)
    subject = draw_noun_phrase(rng, PEOPLE_AND_ANIMALS, adjective=0.4)
    if chance(rng, 0.75):
        return subject
    known = draw_name(rng) if chance(rng, 0.4) else draw_noun_phrase(rng, NOUNS)
    return relative_clause(subject, pick(rng, TRANSITIVE_VERBS), known)


def draw_any_sentence(rng: Random) -> tuple[str, str]:
    subject = draw_subject(rng)
    if chance(rng, 0.3):
        verb = pick(rng, TRANSFER_VERBS)
        thing = draw_noun_phrase(rng, THINGS, adjective=0.4, code=0.7)
        named = chance(rng, 0.5)
        receiver = draw_name(rng) if named else draw_noun_phrase(rng, PEOPLE_AND_ANIMALS)
        where = adposition(TO, receiver)
    else:
        verb = pick(rng, TRANSITIVE_VERBS)
        if chance(rng, 0.25):
            thing = draw_name(rng)
        elif chance(rng, 0.6):
            thing = draw_noun_phrase(rng, THINGS, adjective=0.4, code=0.7)
        else:
            thing = draw_noun_phrase(rng, PEOPLE_AND_ANIMALS, adjective=0.4)
        where = NOTHING
        if chance(rng, 0.5):
            place = draw_noun_phrase(rng, PLACES, code=0.7)
            where = adposition(pick(rng, PLACE_PREPOSITIONS), place)
    adverb, time = pick(rng, ADVERBS, 0.3), pick(rng, TIMES, 0.35)
    return sentence(subject, verb, thing, where=where, adverb=adverb, time=time)


def draw_sentence(rng: Random) -> tuple[str, str]:
    while True:
        source, target = draw_any_sentence(rng)
        if len(source.split()) in SENTENCE_WORDS:
            return source, target


def distinct_pairs(
    rng: Random, count: int, draw: Callable[[Random], tuple[str, str]]
) -> list[tuple[str, str]]:
    """``count`` pairs of source and target from ``draw``, no source twice.

    Raises:
        ValueError: ``draw`` does not yield so many.
    """
    if count > MOST_PAIRS:
        raise ValueError(f"{count} pairs are too many: at most {MOST_PAIRS}")
    pairs: dict[str, str] = {}
    for _ in range(DRAWS_PER_PAIR * count):
        if len(pairs) == count:
            break
        source, target = draw(rng)
        pairs[source] = target
    if len(pairs) < count:
        raise ValueError(f"the grammar yields too few distinct sources for {count}")
    return list(pairs.items())


def parallel_files(
    draw: Callable[[Random], tuple[str, str]], sizes: dict[str, int], seed: int
) -> dict[str, list[str]]:
    """The lines of every file, by file name; ``sizes`` are pairs by split.

    Raises:
        ValueError: ``draw`` does not yield so many pairs.
    """
    pairs = iter(distinct_pairs(Random(seed), sum(sizes.values()), draw))
    files: dict[str, list[str]] = {}
    for split, size in sizes.items():
        sources, targets = zip(*(next(pairs) for _ in range(size)), strict=True)
        files[f"{split}.src"], files[f"{split}.tgt"] = list(sources), list(targets)
    return files


def generate(sizes: dict[str, int], seed: int) -> dict[str, list[str]]:
    """The lines of every file, by file name; ``sizes`` are sentences by split.

    Raises:
        ValueError: the grammar does not yield so many sentences.
    """
    return parallel_files(draw_sentence, sizes, seed)


def write_files(directory: Path, files: dict[str, list[str]]) -> None:
    """Write every file in full before the first gets its name."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in files:
        if (directory / name).exists():
            raise FileExistsError(f"{directory / name} is there already; it is not overwritten")
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as partial:
        for name, lines in files.items():
            text = "".join(f"{line}\n" for line in lines)
            (Path(partial) / name).write_text(text, encoding="utf-8", newline="\n")
        for name in files:
            os.replace(Path(partial) / name, directory / name)


def generator_main(
    generate: Callable[[dict[str, int], int], dict[str, list[str]]],
    description: str,
    unit: str,
    sizes: dict[str, int],
    arguments: list[str] | None,
) -> None:
    """The command line of a generator.

    Args:
        generate: the lines of every file by its name, given sizes by split and a seed. It
            meets the splits in the order of ``sizes``.
        unit: what a size counts.
        sizes: the defaults.
        arguments: those of the command line by default.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output_dir", type=Path)
    for split, size in reversed(sizes.items()):
        parser.add_argument(
            f"--{split}", type=int, default=size, help=f"{unit} (default: %(default)s)"
        )
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    sizes = {split: getattr(options, split) for split in sizes}
    try:
        for split, size in sizes.items():
            if size < 1:
                raise ValueError(f"--{split} must be at least 1, not {size}")
        if options.output_dir.exists() and not options.output_dir.is_dir():
            raise NotADirectoryError(f"{options.output_dir} exists and is not a directory")
        write_files(options.output_dir, generate(sizes, options.seed))
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")


def main(arguments: list[str] | None = None) -> None:
    generator_main(
        generate,
        "Write a small synthetic translation task from a grammar of its own.",
        "sentences",
        {"test": 200, "valid": 200, "train": 6000},
        arguments,
    )


if __name__ == "__main__":
    main()
