"""Learn a SentencePiece BPE model and split text with it.

    python scripts/sentencepiece_bpe.py train --input FILE... --model-prefix P --vocab-size N
        [--whole-words WORD...]
    python scripts/sentencepiece_bpe.py encode --model P.model < text > pieces

``train`` writes ``P.model`` and ``P.vocab``; all characters of the input are covered.
"""

import argparse
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

LOG_ERRORS_ONLY = 2
LIMITS = {
    "at most": re.compile(r"set it to a value <= (\d+)"),
    "at least": re.compile(r"smaller than required_chars\. \d+ vs (\d+)"),
}
SPECIAL = 3  # pieces of every model; with fewer SentencePiece fails before it knows the least
LONGEST_LINE = 1 << 30  # bytes; by default SentencePiece silently skips lines of more than 4,192


def train(
    files: list[str], model_prefix: str, vocab_size: int, whole_words: tuple[str, ...] = ()
) -> None:
    import sentencepiece

    for ending in (".model", ".vocab"):
        if model_prefix.endswith(ending):
            raise ValueError(f"--model-prefix {model_prefix}: give it without {ending}")
        if Path(model_prefix + ending).exists():
            raise FileExistsError(
                f"{model_prefix}{ending} is there already: delete it or choose another name"
            )
    if os.path.basename(model_prefix) in ("", ".", ".."):
        raise ValueError(f"--model-prefix {model_prefix}: a folder; give FOLDER/NAME")
    folder = Path(model_prefix).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; make it first: mkdir -p {folder}")
    for file in files:
        require_file(file)
    raised: list[BaseException] = []
    trained = io.BytesIO()  # SentencePiece does not notice a full disk
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read(files, raised),  # the model would keep names of files
            model_writer=trained,
            vocab_size=max(vocab_size, SPECIAL),
            model_type="bpe",
            character_coverage=1.0,
            max_sentence_length=LONGEST_LINE,
            user_defined_symbols=[f"\u2581{word}" for word in whole_words],
            minloglevel=LOG_ERRORS_ONLY,
        )
    except RuntimeError as error:
        if raised:
            raise raised[0] from None
        for limit, pattern in LIMITS.items():
            if found := pattern.search(str(error)):
                raise ValueError(
                    f"--vocab-size {vocab_size}: {limit} {found[1]} for this text"
                ) from None
        if re.search(r"sentences_\.empty|all_chars_count", str(error)):
            raise ValueError(f"{', '.join(files)}: no text") from None
        raise
    model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    pieces = ((model.id_to_piece(i), model.get_score(i)) for i in range(model.get_piece_size()))
    vocabulary = "".join(f"{piece}\t{score:g}\n" for piece, score in pieces)
    write(
        {f"{model_prefix}.vocab": vocabulary.encode(), f"{model_prefix}.model": trained.getvalue()}
    )


def write(contents: dict[str, bytes]) -> None:
    """Write new files of one folder, whole or not at all."""
    folder = Path(next(iter(contents))).parent
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as whole:
        for number, content in enumerate(contents.values()):
            with open(Path(whole, str(number)), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for name in filter(os.path.lexists, contents):
            raise FileExistsError(f"{name} is there already: another run has written it")
        for number, name in enumerate(contents):
            os.replace(Path(whole, str(number)), name)


def encode(model: str, text: BinaryIO, pieces: TextIO) -> None:
    import sentencepiece

    require_file(model)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=Path(model).read_bytes())
    except RuntimeError:
        raise ValueError(f"{model} is not a SentencePiece model; give the .model file") from None
    for line in decoded(text, "standard input"):
        print(*processor.encode(line.rstrip("\n"), out_type=str), file=pieces)


def require_file(path: str) -> None:
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; give one of its files")


def read(files: list[str], raised: list[BaseException]) -> Iterator[str]:
    """The lines of files; what ends them goes to ``raised``: SentencePiece makes another error of
    it."""
    try:
        for file in files:
            with open(file, "rb") as text:
                for line in decoded(text, file):
                    yield line.rstrip("\n")
    except (Exception, KeyboardInterrupt) as error:
        raised.append(error)
        raise


def decoded(text: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a text.

    Raises:
        ValueError: one is not UTF-8; the message names it.
    """
    for number, line in enumerate(text, 1):
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"{name}, line {number}: not UTF-8; convert it: iconv -f ENCODING -t UTF-8"
            ) from None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Learn a SentencePiece BPE model and split text with it."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("train", help="learn a model from text files").add_argument
    add("--input", nargs="+", required=True, metavar="FILE")
    add("--model-prefix", required=True, metavar="P", help="writes P.model and P.vocab")
    add("--vocab-size", type=int, required=True, metavar="N")
    whole = "words that stay one piece, such as a mark between sentences"
    add("--whole-words", nargs="+", default=(), metavar="WORD", help=whole)
    add = commands.add_parser("encode", help="split standard input into pieces").add_argument
    add("--model", required=True, metavar="P.model")
    options = parser.parse_args(arguments)
    try:
        if options.command == "train":
            train(options.input, options.model_prefix, options.vocab_size, options.whole_words)
        else:
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
            if sys.stdin is None:
                raise OSError("standard input is closed")
            encode(options.model, sys.stdin.buffer, sys.stdout)
    except ModuleNotFoundError:
        from cli import missing

        sys.exit(missing("sentencepiece"))
    except BrokenPipeError:  # as after head; what is buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (RuntimeError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
