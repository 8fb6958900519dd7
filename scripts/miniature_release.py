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
import random
import shutil
import sys
import zipfile
from pathlib import Path

from invented_language import new_folder, write_lines

LINES = {"train": 300, "valid": 20, "test": 20}
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "no", "ri", "so", "tu", "va")


def word(rng: random.Random) -> str:
    return "".join(rng.choices(SYLLABLES, k=min(rng.randint(1, 3), rng.randint(1, 3))))


def sentences(seed: str, count: int) -> list[list[str]]:
    """Lists of words, the same in every call."""
    rng = random.Random(seed)
    return [[word(rng) for _ in range(rng.randint(3, 9))] + ["."] for _ in range(count)]


def side_of(words: list[str], side: str) -> str:
    return " ".join(words if side == "source" else [*(w + "n" for w in words[-2::-1]), "."])


def generated(split: str, side: str, form: str) -> list[str]:
    """The lines of a file, in the format of the release."""
    pairs = sentences(split, LINES[split])
    texts = [side_of(words, side) for words in pairs]
    if form == "tab":
        return [f"{side_of(words, 'source')}\t{side_of(words, 'target')}" for words in pairs]
    if form == "tags":
        title = f"<title>{texts[0]}</title>"
        return ["<url>http://example.org</url>", "<keywords>talks</keywords>", title, *texts]
    if form in ("sgm", "xml"):
        return [f'<seg id="{i}"> {text} </seg>' for i, text in enumerate(texts, 1)]
    if form == "stories":
        return [f"http://example.org/{split}/{i}.html" for i in range(LINES[split])]
    if form == "dialogues":
        turns = ("\r\n".join(f"{name}: {text}" for name in ("Ann", "Bo", "Ann")) for text in texts)
        entries = zip(turns, (side_of(words, "target") for words in pairs), strict=True)
        return [json.dumps([{"dialogue": said, "summary": summary} for said, summary in entries])]
    if form.isupper():
        return ["index\tsentence1\tsentence2\tlabel"] + [
            f"{i}\t{text}\t{texts[i - 1]}\t{('entailment', 'not_entailment')[i % 2]}"
            for i, text in enumerate(texts)
        ]
    return texts


def find(source: Path, file: str) -> Path:
    """A file of ``source``: at its place in the release, or at the top; plain or compressed.

    Raises:
        FileNotFoundError: there is no such file.
    """
    for name in (file, Path(file).name):
        for candidate in (name, f"{name}.gz"):
            if found := sorted(source.glob(candidate)):
                return found[0]
    raise FileNotFoundError(f"no {file} in {source}")


def beginning(source: Path, file: str, split: str, form: str) -> list[str]:
    """The first lines of a file of ``source``; of markup, the first ones with a <seg>.

    Raises:
        OSError: it is not there or cannot be read.
    """
    if form == "dialogues":
        return [json.dumps(json.loads(dialogues(source, file))[: LINES[split]])]
    path = find(source, file)
    opened = gzip.open if path.suffix == ".gz" else open
    marked_up = form in ("sgm", "xml")
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as lines:
            wanted = (line.rstrip("\n") for line in lines if not marked_up or "<seg" in line)
            return list(itertools.islice(wanted, LINES[split]))
    except (EOFError, ValueError) as error:
        raise OSError(f"{path} cannot be read: {error}") from None


def dialogues(source: Path, file: str) -> bytes:
    archive = source / "samsum.zip"
    if not archive.exists():
        return find(source, file).read_bytes()
    with zipfile.ZipFile(archive) as files:
        return files.read(f"samsum/{file}")


def write_story(folder: Path, address: str, source: Path | None) -> None:
    """The article of an address, with its highlights."""
    name = hashlib.sha1(address.encode()).hexdigest() + ".story"
    for publisher in ("cnn", "dailymail"):
        (folder / publisher / "stories").mkdir(parents=True, exist_ok=True)
    story = folder / "cnn" / "stories" / name
    if source:
        shutil.copyfile(find(source, f"*/stories/{name}"), story)
        return
    text = [side_of(words, "source") for words in sentences(address, 12)]
    parts = [*text, "@highlight", text[0], "@highlight", text[1]]
    story.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def write(folder: Path, file: str, content: str, source: Path | None) -> None:
    split, side, form = (*content.split("."), "lines")[:3]
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if source and form.isupper() and "/" in file and not (source / Path(file).parts[0]).exists():
        source = None
    lines = beginning(source, file, split, form) if source else generated(split, side, form)
    write_lines(path, lines)
    if form == "stories":
        for address in lines:
            write_story(folder, address, source)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("output", type=Path, help="a new folder")
    add("--files", nargs="+", required=True, metavar="FILE=CONTENT")
    add("--source", type=Path, metavar="DIR", help="a local copy of the release")
    options = parser.parse_args(arguments)
    try:
        with new_folder(options.output) as folder:
            for text in options.files:
                file, _, content = text.rpartition("=")
                write(folder, file, content, options.source)
    except OSError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
