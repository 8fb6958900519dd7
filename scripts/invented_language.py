"""An invented language beside English, of which the quickstart's data are made.

It puts the time first and the verb last (subject, place or receiver, object, adverb, verb),
adjectives after nouns, and has postpositions for prepositions. Every noun is of class sun, moon or
stone, which neither language shows on the noun; determiners, adjectives and verbs end in -a, -o or
-e for the class, with -n for the plural. Nouns take -i in the plural. Proper names (class sun) and
codes are the same in both languages.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

ENDINGS = {"sun": ("a", "an"), "moon": ("o", "on"), "stone": ("e", "en")}
"""Singular and plural by class."""
NOUN_PLURAL = "i"
RELATIVE = "ki"
TO = "to"


def lexicon(text: str) -> dict[str, str]:
    """Invented words or stems by English ones: pairs between commas."""
    return dict(pair.split() for pair in text.split(","))


def nouns(text: str) -> dict[str, tuple[str, str]]:
    """Stem and class by English noun."""
    entries = (entry.split() for entry in text.split(","))
    return {english: (stem, noun_class) for english, stem, noun_class in entries}


PEOPLE_AND_ANIMALS = nouns(
    "baker dorim sun, sailor marub moon, doctor kelos stone,"
    "teacher vitan sun, farmer gurem moon, painter solik stone,"
    "singer bavet sun, gardener nirog moon, neighbour hadul stone,"
    "dog tubar sun, cat misol moon, horse rakem stone,"
    "bird pilev sun, goat zogan moon, bear urtik stone"
)
THINGS = nouns(
    "boat lerod sun, letter fimas moon, lamp sopal stone,"
    "coat gavir sun, book netuk moon, chair bodel stone,"
    "drum tamog sun, map ravis moon, basket kudon stone,"
    "ladder hipet sun, bottle zelum moon, clock dinak stone,"
    "hat mopir sun, bell tilon moon"
)
PLACES = nouns(
    "house varem stone, garden lisot sun, river nawel moon, market pogur stone,"
    "forest sedim sun, bridge talud stone, tower korev moon, school bimas sun,"
    "mill rudak moon, lake fenol stone"
)
NOUNS = PEOPLE_AND_ANIMALS | THINGS | PLACES
DETERMINERS = lexicon("the l, my m, your t, our s")
ADJECTIVES = lexicon(
    "old gelt, young firn, small mosk, big vard, red rusp, blue helm,"
    "green zint, heavy dorg, strange kulv, quiet pamb, clean tesk, lost bilt"
)
TRANSITIVE_VERBS = lexicon(
    "saw siv, found tobr, followed ganz, liked melk, drew pirt,"
    "washed lusk, carried hond, hid dakr, remembered veng, moved rolt"
)
TRANSFER_VERBS = lexicon("gave nemb, sent fust, showed kilp, sold zart")
VERBS = TRANSITIVE_VERBS | TRANSFER_VERBS
POSTPOSITIONS = lexicon("to vo, in ni, near ber, behind dus, from gal")
PLACE_PREPOSITIONS = tuple(word for word in POSTPOSITIONS if word != TO)
ADVERBS = lexicon("quietly nuli, slowly pesa, often rimo, gladly tevu")
TIMES = lexicon("yesterday heven, today sulen, recently bralen, early odrin")

SYLLABLES = tuple(consonant + vowel for consonant in "bdklmnprtv" for vowel in "aio")
CODE_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"


class Dice(Random):
    """Random decisions about words."""

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, options: Iterable[str], probability: float = 1.0) -> str:
        """One of ``options``, or with 1 - ``probability`` the empty string."""
        return self.choice(tuple(options)) if self.chance(probability) else ""

    def name(self) -> str:
        return "".join(self.choices(SYLLABLES, k=self.choice((2, 3)))).capitalize()

    def code(self) -> str:
        return f"{self.choice(CODE_LETTERS)}{self.randrange(100):02}"


def words(*parts: str) -> str:
    return " ".join(filter(None, parts))


def parallel_files(
    draw: Callable[[Dice], tuple[str, str]], sizes: dict[str, int], seed: int
) -> dict[str, list[str]]:
    """The lines of ``SPLIT.src`` and ``SPLIT.tgt``; no source comes twice.

    Args:
        draw: a pair of source and target.
        sizes: pairs by split.
    """
    rng, pairs = Dice(seed), {}
    while len(pairs) < sum(sizes.values()):
        source, target = draw(rng)
        pairs[source] = target
    files, rest = {}, iter(pairs.items())
    for split, size in sizes.items():
        sources, targets = zip(*(next(rest) for _ in range(size)), strict=True)
        files |= {f"{split}.src": list(sources), f"{split}.tgt": list(targets)}
    return files


def write_files(directory: Path, files: dict[str, list[str]]) -> None:
    """Write every file in full before the first gets its name.

    Raises:
        FileExistsError: one of them is there already.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in files:
        if (directory / name).exists():
            raise FileExistsError(f"{directory / name} is there already; it is not overwritten")
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as partial:
        for name, lines in files.items():
            text = "".join(f"{line}\n" for line in lines)
            Path(partial, name).write_text(text, encoding="utf-8", newline="\n")
        for name in files:
            os.replace(Path(partial, name), directory / name)


def main(
    generate: Callable[[dict[str, int], int], dict[str, list[str]]],
    description: str | None,
    arguments: list[str] | None = None,
    **sizes: int,
) -> None:
    """The command line of a generator.

    Args:
        generate: the lines of every file by its name, given lines by split and a seed. It
            meets the splits in the order of ``sizes``.
        arguments: those of the command line by default.
        sizes: the default number of lines of each split.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path)
    for split, size in reversed(sizes.items()):
        parser.add_argument(f"--{split}", type=int, default=size, help=f"lines (default: {size})")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    options = parser.parse_args(arguments)
    sizes = {split: getattr(options, split) for split in sizes}
    for split, size in sizes.items():
        if not 1 <= size <= 1_000_000:
            sys.exit(f"error: --{split} must be from 1 to 1,000,000, not {size}")
    try:
        write_files(options.output_dir, generate(sizes, options.seed))
    except OSError as error:
        sys.exit(f"error: {error}")
