"""Write the articles and summaries of CNN/DailyMail as text, one a line.

    python scripts/extract_cnn_dm.py --stories cnn/stories dailymail/stories \\
        --urls all_test.txt --output test

writes ``test.source`` (articles) and ``test.target`` (summaries) of the stories whose addresses
the list has, in its order; the story of an address is in the file SHA1.story.

As in See et al. (2017), a line that no punctuation mark ends, often a caption, gets a full stop,
and a story without an article or without highlights is left out. Unlike theirs, the text keeps
its case and is not tokenised. White space is folded, and <q> separates the highlights, which are
the sentences of a summary.
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path

from tqdm import tqdm

HIGHLIGHT = "@highlight"
SENTENCE_SEPARATOR = " <q> "
ENDS_OF_SENTENCES = tuple(".!?'`\"\u2019\u201d)")


def article_and_summary(story: str) -> tuple[str, str]:
    """Both texts of a story, each of them empty if there is none."""
    article: list[str] = []
    highlights: list[str] = []
    lines = article
    for line in (" ".join(line.split()) for line in story.split("\n")):
        if line.startswith(HIGHLIGHT):
            lines = highlights
        elif line:
            lines.append(line if line.endswith(ENDS_OF_SENTENCES) else f"{line}.")
    return " ".join(article), SENTENCE_SEPARATOR.join(highlights)


def listed_stories(urls: Path, folders: list[Path]) -> list[Path]:
    """The stories of the addresses in ``urls``, in the list's order.

    Raises:
        FileNotFoundError: a folder is missing, or a story is in none of them.
    """
    folder_of = {name: folder for folder in folders for name in os.listdir(folder)}
    stories, missing = [], []
    for url in urls.read_text(encoding="utf-8").splitlines():
        name = hashlib.sha1(url.strip().encode()).hexdigest() + ".story"
        if name in folder_of:
            stories.append(folder_of[name] / name)
        else:
            missing.append(f"{name} ({url})")
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of the stories that {urls} lists are missing, first {missing[0]}"
        )
    return stories


def write_pairs(stories: list[Path], prefix: str) -> int:
    """Write ``prefix.source`` and ``prefix.target``; returns the number of pairs.

    Raises:
        UnicodeDecodeError: a story is not UTF-8 text.
    """
    pairs = 0
    with (
        open(f"{prefix}.source", "w", encoding="utf-8", newline="\n") as source,
        open(f"{prefix}.target", "w", encoding="utf-8", newline="\n") as target,
    ):
        for story in tqdm(stories, disable=None, unit=" stories"):
            article, summary = article_and_summary(story.read_text(encoding="utf-8"))
            if article and summary:
                print(article, file=source)
                print(summary, file=target)
                pairs += 1
    return pairs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--stories", type=Path, nargs="+", required=True, metavar="DIR", help="with SHA1.story")
    add("--urls", type=Path, required=True, metavar="FILE", help="their addresses, one a line")
    add("--output", required=True, metavar="PREFIX", help="writes PREFIX.source, PREFIX.target")
    options = parser.parse_args(arguments)
    try:
        stories = listed_stories(options.urls, options.stories)
        pairs = write_pairs(stories, options.output)
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"error: {error}")
    print(
        f"{Path(options.output).name}: {pairs} pairs of {len(stories)} stories; "
        f"{len(stories) - pairs} lack the article or the highlights"
    )


if __name__ == "__main__":
    main()
