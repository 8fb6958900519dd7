"""Write a corpus in miniature, with the files and formats of a public release.

    python scripts/miniature_release.py OUTPUT --files FILE=CONTENT... [--source DIR]

A smoke test prepares it with the script of the whole release. The text is generated, or the
beginning of the same files of DIR (FILE or its name alone, plain or .gz); a folder of the release
that DIR lacks altogether is generated. CONTENT is SPLIT.SIDE or SPLIT.SIDE.FORMAT:

SPLIT   train, valid or test: 300, 20 or 20 lines
SIDE    source, or target: its words one by one, reversed
FORMAT  lines (default); sgm or xml, a <seg> each; tags, as the training files of IWSLT have them;
        tab, both sides of a line in one file; TASK of GLUE in capitals, a .tsv of it; or stories,
        a list of addresses whose articles are written beside it, to cnn/stories; or dialogues,
        a JSON list of them with summaries, which DIR may have in samsum.zip
"""

import argparse
import gzip
import hashlib
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

LINES = {"train": 300, "valid": 20, "test": 20}
STORIES = {"train": 40, "valid": 8, "test": 8}
DIALOGUES = {"train": 24, "valid": 8, "test": 8}
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "no", "ri", "so", "tu", "va")


def word(rng: random.Random) -> str:
    return "".join(rng.choices(SYLLABLES, k=min(rng.randint(1, 3), rng.randint(1, 3))))


def sentences(split: str, count: int) -> list[list[str]]:
    """The words of each, the same ones whenever they are asked for."""
    rng = random.Random(split)
    return [[word(rng) for _ in range(rng.randint(3, 9))] + ["."] for _ in range(count)]


def side_of(words: list[str], side: str) -> str:
    return " ".join(words if side == "source" else [*(w + "n" for w in words[-2::-1]), "."])


def generated(split: str, side: str, form: str) -> list[str]:
    """The lines of a file, in the format of the release."""
    pairs = sentences(split, LINES[split])
    if form == "tab":
        return [f"{side_of(words, 'source')}\t{side_of(words, 'target')}" for words in pairs]
    texts = [side_of(words, side) for words in pairs]
    if form == "tags":
        title = f"<title>{texts[0]}</title>"
        return ["<url>http://example.org</url>", "<keywords>talks</keywords>", title, *texts]
    if form in ("sgm", "xml"):
        return [f'<seg id="{i}"> {text} </seg>' for i, text in enumerate(texts, 1)]
    if form.isupper():
        return ["index\tsentence1\tsentence2\tlabel"] + [
            f"{i}\t{text}\t{texts[i - 1]}\t{('entailment', 'not_entailment')[i % 2]}"
            for i, text in enumerate(texts)
        ]
    return texts


def write_stories(folder: Path, urls: Path, split: str, source: Path | None) -> None:
    """A list of addresses, and the articles with their highlights."""
    if source:
        addresses = beginning(source, urls.name, "", STORIES[split])
    else:
        addresses = [f"http://example.org/{split}/{i}.html" for i in range(STORIES[split])]
    stories = folder / "cnn" / "stories"
    stories.mkdir(parents=True, exist_ok=True)
    (folder / "dailymail" / "stories").mkdir(parents=True, exist_ok=True)
    urls.write_text("".join(f"{address}\n" for address in addresses), encoding="utf-8")
    for address in addresses:
        name = hashlib.sha1(address.encode()).hexdigest() + ".story"
        if source:
            shutil.copyfile(find(source, f"*/stories/{name}"), stories / name)
            continue
        text = [side_of(words, "source") for words in sentences(address, 12)]
        story = "\n\n".join([*text, "@highlight", text[0], "@highlight", text[1]])
        (stories / name).write_text(story + "\n", encoding="utf-8")


def dialogues(source: Path | None, file: str, split: str) -> list[dict[str, str]]:
    """Dialogues of three turns with summaries, or the first ones of ``source``."""
    if source is None:
        return [
            {"id": str(i), "summary": side_of(words, "target"), "dialogue": "\r\n".join(turns)}
            for i, words in enumerate(sentences(split, DIALOGUES[split]))
            for turns in [[f"{name}: {side_of(words, 'source')}" for name in ("Ann", "Bo", "Ann")]]
        ]
    if (source / "samsum.zip").exists():
        with zipfile.ZipFile(source / "samsum.zip") as archive:
            text = archive.read(f"samsum/{file}")
    else:
        text = find(source, file).read_bytes()
    return json.loads(text)[: DIALOGUES[split]]


def find(source: Path, file: str) -> Path:
    """A file of ``source``: at its place in the release, or at the top; plain or compressed.

    Raises:
        FileNotFoundError: there is none.
    """
    for name in (file, Path(file).name):
        for candidate in (name, f"{name}.gz"):
            if found := sorted(source.glob(candidate)):
                return found[0]
    raise FileNotFoundError(f"no {file} in {source}")


def beginning(source: Path, file: str, form: str, count: int) -> list[str]:
    """The first lines of a file of ``source``; of markup, the first ones with a <seg>.

    Raises:
        OSError: it is not there or cannot be read.
    """
    path = find(source, file)
    opened = gzip.open if path.suffix == ".gz" else open
    marked_up = form in ("sgm", "xml")
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as lines:
            wanted = (line for line in lines if not marked_up or "<seg" in line)
            return [line.rstrip("\n") for line in itertools.islice(wanted, count)]
    except (EOFError, ValueError) as error:
        raise OSError(f"{path} cannot be read: {error}") from None


def write(folder: Path, files: Iterable[tuple[str, str]], source: Path | None) -> None:
    for file, content in files:
        split, side, form = (*content.split("."), "lines")[:3]
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "stories":
            write_stories(folder, path, split, source)
            continue
        if form == "dialogues":
            path.write_text(json.dumps(dialogues(source, file, split)), encoding="utf-8")
            continue
        whole_folder = source and form.isupper() and "/" in file
        if source and not (whole_folder and not (source / Path(file).parts[0]).exists()):
            lines = beginning(source, file, form, LINES[split])
        else:
            lines = generated(split, side, form)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def file_and_content(text: str) -> tuple[str, str]:
    file, equals, content = text.rpartition("=")
    if not equals or content.split(".")[0] not in LINES:
        raise argparse.ArgumentTypeError(f"'{text}' is no FILE=SPLIT.SIDE")
    return file, content


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("output", type=Path, help="a new folder")
    add("--files", type=file_and_content, nargs="+", required=True, metavar="FILE=CONTENT")
    add("--source", type=Path, metavar="DIR", help="a local copy of the release")
    options = parser.parse_args(arguments)
    try:
        if options.output.exists():
            raise FileExistsError(f"{options.output} is there already; it is not overwritten")
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.output.parent) as partial:
            folder = Path(partial) / "release"
            folder.mkdir()
            write(folder, options.files, options.source)
            os.rename(folder, options.output)
    except OSError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
