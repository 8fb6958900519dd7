"""What Moses' Perl scripts do to parallel text, by their port sacremoses.

    python scripts/moses_text.py tokenise --language L [--normalise] [--aggressive] [--lower]
        < text > tokens
    python scripts/moses_text.py clean SOURCE TARGET NEW_SOURCE NEW_TARGET --longest N [--unique]

``tokenise`` takes and gives a line each; Chinese (zh) is split into words by jieba. ``--normalise``
normalises punctuation and replaces characters that do not print, ``--aggressive`` splits at hyphens
(a @-@ b). ``clean`` drops pairs of which a side is empty or longer than N tokens, or more than 1.5
times as long as the other, as clean-corpus-n.perl -ratio 1.5 does; ``--unique`` drops those, too,
that were there before.
"""

import argparse
import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice, zip_longest
from typing import TextIO

from sentencepiece_bpe import decoded

RATIO = 1.5
CHUNK = 1000  # lines per process and batch
BATCHES = 50  # per process that are read at once


def tokeniser(
    language: str, normalise: bool, aggressive: bool, lower: bool
) -> Callable[[str], str]:
    """The function from a line to its tokens.

    Raises:
        ImportError: the package that the language needs is not installed.
    """
    steps: list[Callable[[str], str]] = []
    if normalise:
        import regex
        from sacremoses import MosesPunctNormalizer

        steps += [MosesPunctNormalizer(language).normalize]
        steps += [functools.partial(regex.compile(r"\p{C}").sub, " ")]
    if language == "zh":
        import jieba

        jieba.setLogLevel(logging.WARNING)
        # some of the corpora are split already, in other ways
        steps += [
            functools.partial(re.compile(r"(?<=[\u4e00-\u9fff])\s+(?=[\u4e00-\u9fff])").sub, "")
        ]
        steps += [lambda line: " ".join(jieba.cut(line))]
    else:
        from sacremoses import MosesTokenizer

        tokenize = MosesTokenizer(language).tokenize
        options = {"aggressive_dash_splits": aggressive, "return_str": True}
        steps += [functools.partial(tokenize, **options)]
        # of a line's end Moses splits any full stop, sacremoses none after an abbreviation
        steps += [functools.partial(re.compile(r"(?<=[^\s.])\.$").sub, " .")]
    if lower:
        steps += [str.lower]
    return lambda line: " ".join(
        functools.reduce(lambda text, step: step(text), steps, line).split()
    )


def work(*options: str | bool) -> None:
    global tokenise_line
    tokenise_line = tokeniser(*options)


def one_line(line: str) -> str:
    return tokenise_line(line)


def tokenise(arguments: argparse.Namespace) -> None:
    options = (arguments.language, arguments.normalise, arguments.aggressive, arguments.lower)
    tokeniser(*options)  # a missing package is reported once
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    if sys.stdin is None:
        raise OSError("standard input is closed")
    lines = (line.rstrip("\n") for line in decoded(sys.stdin.buffer, "standard input"))
    processes = len(os.sched_getaffinity(0))
    # multiprocessing.Pool would wait for ever for a worker that was killed
    with ProcessPoolExecutor(processes, initializer=work, initargs=options) as pool:
        while block := list(islice(lines, BATCHES * CHUNK * processes)):
            for tokens in pool.map(one_line, block, chunksize=CHUNK):
                print(tokens)


@contextlib.contextmanager
def _new_files(*names: str) -> Iterator[list[TextIO]]:
    """New files, which go if an error ends their writing."""
    for name in names:
        if os.path.lexists(name):
            raise FileExistsError(f"{name} is there already; it is not overwritten")
    opened: list[TextIO] = []
    try:
        with contextlib.ExitStack() as files:
            for name in names:
                opened.append(files.enter_context(open(name, "x", encoding="utf-8")))
            yield opened
    except BaseException:  # also of the last flush
        for file in opened:
            os.unlink(file.name)
        raise


def clean(arguments: argparse.Namespace) -> None:
    kept = total = 0
    seen: set[int] = set()
    with (
        open(arguments.source, "rb") as source,
        open(arguments.target, "rb") as target,
        _new_files(arguments.new_source, arguments.new_target) as (new_source, new_target),
    ):
        texts = decoded(source, arguments.source), decoded(target, arguments.target)
        for lines in zip_longest(*texts):
            if None in lines:
                raise ValueError(f"{arguments.source} and {arguments.target} differ in length")
            total += 1
            sides = [line.split() for line in lines]
            shorter, longer = sorted(map(len, sides))
            if not shorter or longer > min(arguments.longest, RATIO * shorter):
                continue
            pair = tuple(map(" ".join, sides))
            if arguments.unique:
                if hash(pair) in seen:
                    continue
                seen.add(hash(pair))
            kept += 1
            new_source.write(f"{pair[0]}\n")
            new_target.write(f"{pair[1]}\n")
    print(f"kept {kept} of {total} pairs")


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("tokenise", help="standard input to standard output").add_argument
    add("--language", required=True, metavar="L")
    for option in ("--normalise", "--aggressive", "--lower"):
        add(option, action="store_true")
    add = commands.add_parser("clean", help="drop pairs of very unequal lengths").add_argument
    for name in ("source", "target", "new_source", "new_target"):
        add(name)
    add("--longest", type=int, required=True, metavar="N")
    add("--unique", action="store_true")
    arguments = parser.parse_args(given)
    try:
        (tokenise if arguments.command == "tokenise" else clean)(arguments)
    except ImportError as error:
        sys.exit(f"error: {error}; pip install {error.name}")
    except BrokenProcessPool:
        sys.exit("error: a process ended early; is there enough memory?")
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
