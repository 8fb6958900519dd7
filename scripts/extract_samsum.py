"""Write the dialogues of SAMSum and their summaries, a line each.

    python scripts/extract_samsum.py FILE.json PREFIX

writes ``PREFIX.source`` (turns as ``Ann : text``, with ``<turn>`` between them), ``PREFIX.target``
and ``PREFIX.longest3``, the baseline of Gliwa et al. (2019). Dialogues or summaries without text
are left out.
"""

import json
import sys
from pathlib import Path

TURN = "<turn>"
LONGEST = 3


def turns(dialogue: str) -> list[str]:
    """The turns of a dialogue, ``Ann : text``; those without text are left out.

    A line without a speaker continues the turn above it.
    """
    said: list[tuple[str, list[str]]] = []
    for line in dialogue.split("\n"):
        speaker, colon, text = line.partition(":")
        if colon:
            said.append((speaker, text.split()))
        elif said:
            said[-1][1].extend(line.split())
    return [" ".join([*speaker.split(), ":", *words]) for speaker, words in said if words]


def longest(dialogue: str, count: int = LONGEST) -> str:
    """The ``count`` longest lines as released, by characters; the longest first, of equal ones the
    first. In this order py-rouge gives them the ROUGE-2 that the paper reports.
    """
    lines = sorted(dialogue.replace("\r\n", "\n").split("\n"), key=len, reverse=True)
    return " ".join(" ".join(lines[:count]).split())


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 2:
        sys.exit("usage: python scripts/extract_samsum.py FILE.json PREFIX")
    path, prefix = arguments
    sides: dict[str, list[str]] = {"source": [], "target": [], "longest3": []}
    try:
        for entry in json.loads(Path(path).read_text(encoding="utf-8")):
            said, summary = turns(entry["dialogue"]), " ".join(entry["summary"].split())
            if said and summary:
                sides["source"].append(f" {TURN} ".join(said))
                sides["target"].append(summary)
                sides["longest3"].append(longest(entry["dialogue"]))
        for side, lines in sides.items():
            text = "".join(f"{line}\n" for line in lines)
            Path(f"{prefix}.{side}").write_text(text, encoding="utf-8", newline="\n")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"error: {path}: {error or type(error).__name__}")


if __name__ == "__main__":
    main()
