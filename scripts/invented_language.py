"""An invented language beside English, of which the quickstart's data are made.

It puts the time first and the verb last (subject, place or receiver, object, adverb, verb),
adjectives after nouns, and has postpositions for prepositions. Every noun is of class sun, moon or
stone, which neither language shows on the noun; determiners, adjectives and verbs end in -a, -o or
-e for the class, with -n for the plural. Nouns take -i in the plural. Proper names (class sun) and
codes are the same in both languages.
"""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

Files = dict[str, Sequence[str]]
"""Type of a generator's result: lines by file name."""

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
) -> Files:
    """``SPLIT.src`` and ``SPLIT.tgt`` with ``sizes`` pairs that ``draw`` makes; no source twice."""
    rng, pairs = Dice(seed), {}
    while len(pairs) < sum(sizes.values()):
        source, target = draw(rng)
        pairs[source] = target
    files, rest = {}, iter(pairs.items())
    for split, size in sizes.items():
        sources, targets = zip(*itertools.islice(rest, size), strict=True)
        files |= {f"{split}.src": sources, f"{split}.tgt": targets}
    return files


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which is renamed to ``path`` when the block ends.

    Raises:
        FileExistsError: ``path`` exists and is not an empty folder, or is the working directory.
    """
    path = path.resolve()
    if path == Path.cwd():
        raise FileExistsError(f"{path} is the working directory: choose a new folder")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} is there already: delete it or choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as partial:
        folder = Path(partial, "folder")
        folder.mkdir()
        yield folder
        os.rename(folder, path)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def main(
    generate: Callable[[dict[str, int], int], Files], description: str | None, **sizes: int
) -> None:
    """The command line of a generator.

    Args:
        generate: the lines of every file, given lines by split, in the order of ``sizes``, and a
            seed.
        sizes: the default number of lines of each split.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path, help="a new folder")
    for split, size in reversed(sizes.items()):
        parser.add_argument(f"--{split}", type=int, default=size, help=f"lines (default: {size})")
    parser.add_argument("--seed", type=int, default=1, help="(default: 1)")
    options = parser.parse_args()
    sizes = {split: getattr(options, split) for split in sizes}
    if min(sizes.values()) < 1:
        sys.exit("error: each of --train, --valid and --test needs a line at least")
    try:
        with new_folder(options.output_dir) as folder:
            for name, lines in generate(sizes, options.seed).items():
                write_lines(folder / name, lines)
    except OSError as error:
        sys.exit(f"error: {error}")
