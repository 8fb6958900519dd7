"""How options, their values and other texts are written for people."""

import unicodedata


def printable(text: str) -> str:
    """A text for a terminal: control characters, which a file can bring, are escaped."""
    others = "\t\u200c\u200d"  # the latter join letters of Persian, and emoji

    def is_plain(x: str) -> bool:
        return x.isprintable() or unicodedata.category(x) == "Zs" or x in others

    return "".join(x if is_plain(x) else x.encode("unicode_escape").decode() for x in text)


def flag(option: str) -> str:
    """``--max-tokens`` for ``max_tokens``."""
    return f"--{option.replace('_', '-')}"


def value_text(value: object) -> str:
    """``3,7`` for the list of both."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
