"""Options: allowed values, help, and the mixers that read them."""

import ast
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from fairseq.dataclass import ChoiceEnum

from ..spelling import flag

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


class Kind(NamedTuple):
    """The allowed values of an option.

    Attributes:
        annotation: the option's type for fairseq's parser and for hydra.
        read: converts a value from a command line, Python or YAML; raises ValueError with a
            one-line reason.
    """

    annotation: Any
    read: Callable[[Any], Any]


def refuse(option: str, reason: object) -> NoReturn:
    """Raise a one-line ValueError that names the option."""
    raise ValueError(f"{flag(option)}: {reason}")


def read(option: str, kind: Kind, given: Any) -> Any:
    """Convert ``given`` to the option's value.

    Raises:
        ValueError: the value is not allowed; the message is one line and names the option.
    """
    try:
        return kind.read(given)
    except ValueError as error:
        refuse(option, error)


def shown(given: Any) -> str:
    """The value's repr, cut to 80 characters."""
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole(least: int, most: int | None = None) -> Kind:
    """A whole number, within bounds."""

    def read_whole(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int):
            raise ValueError(f"must be a whole number, not {shown(given)}")
        return _within(given, least, most)

    return Kind(int, read_whole)


def number(least: float) -> Kind:
    """A finite number, not below ``least``."""

    def read_number(given: Any) -> float:
        return _within(_finite(given), least, None)

    return Kind(float, read_number)


def probability(below_one: str | None = None) -> Kind:
    """A number from 0 to 1; ``below_one`` says why it cannot be 1."""

    def read_probability(given: Any) -> float:
        if not 0 <= _finite(given) <= 1:
            raise ValueError(f"must be between 0 and 1, not {given}")
        if below_one and given == 1:
            raise ValueError(below_one)
        return given

    return Kind(float, read_probability)


def choice(known: Iterable[str]) -> Kind:
    """One of several names."""
    known = tuple(known)

    def read_choice(given: Any) -> str:
        name = given.value if isinstance(given, Enum) else given
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"unknown {shown(name)}, choose from {', '.join(known)}")
        return name

    return Kind(ChoiceEnum(list(known)), read_choice)


def _read_switch(given: Any) -> bool:
    if not isinstance(given, bool | int | str) or str(given).lower() not in _TRUE + _FALSE:
        raise ValueError(f"must be true or false, not {shown(given)}")
    return str(given).lower() in _TRUE


def _read_flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError(f"must be true or false, not {shown(given)}")
    return given


def whole_numbers(example: str) -> Kind:
    """``3,7,15`` on a command line; a number or a list from Python and from YAML."""

    def read_whole_numbers(given: Any) -> list[int]:
        numbers = given.strip("[] ").split(",") if isinstance(given, str) else given
        numbers = list(numbers) if isinstance(numbers, list | tuple) else [numbers]
        if not all(re.fullmatch(r"\s*[+-]?\d{1,18}\s*", str(number)) for number in numbers):
            raise ValueError(
                f"must be comma-separated whole numbers, such as {example}, not {shown(given)}"
            )
        return [int(number) for number in numbers]

    return Kind(Any, read_whole_numbers)


def names(noun: str, known: Iterable[str], repeated: bool) -> Kind:
    """Comma-separated names. ``known`` is read at every use, as it may grow; ``noun`` is for
    messages."""

    def read_names(given: Any) -> tuple[str, ...]:
        if not isinstance(given, str):
            raise ValueError(f"must be comma-separated names, not {shown(given)}")
        found = tuple(name.strip() for name in given.split(","))
        if not any(found):
            raise ValueError(f"no {noun}s, choose from {', '.join(known)}")
        if not all(found):
            raise ValueError(f"a name is missing in {shown(given)}, before or after a comma")
        for name in found:
            if name not in known:
                raise ValueError(f"unknown {noun} {shown(name)}, choose from {', '.join(known)}")
            if not repeated and found.count(name) > 1:
                raise ValueError(f"{name!r} is given twice")
        return found

    return Kind(str, read_names)


def letters(known: str) -> Kind:
    """Some of the letters, each once, such as ``qkv``."""

    def read_letters(given: Any) -> str:
        if not isinstance(given, str) or not given or not set(given) <= set(known):
            raise ValueError(f"must be some of the letters {known}, not {shown(given)}")
        if len(set(given)) < len(given):
            raise ValueError(f"{shown(given)} repeats a letter")
        return given

    return Kind(str, read_letters)


def _read_layers(given: Any) -> str:
    if not isinstance(given, str) or not re.fullmatch(r" *\d{1,9} *(, *\d{1,9} *)*", given):
        raise ValueError(f"must be numbers of layers, such as 0,2, not {shown(given)}")
    layers = [int(layer) for layer in given.split(",")]
    if len(set(layers)) < len(layers):
        raise ValueError(f"{shown(given)} repeats a layer")
    return given  # fairseq parses the text itself


def _read_cutoffs(given: Any) -> list[int] | None:
    if given == "none":
        return None
    cutoffs = whole_numbers("20000,60000, or none").read(given)
    if sorted(set(cutoffs)) != cutoffs or cutoffs[0] < 1:
        raise ValueError(
            f"must be increasing positions in the dictionary, such as 20000,60000, "
            f"not {shown(given)}"
        )
    return cutoffs


def _positive(given: Any) -> int:
    """A whole number that is at least 1, also as text or as a float."""
    if not float(given).is_integer() or float(given) < 1:
        raise ValueError
    return int(float(given))


def _read_filters(given: Any) -> list[tuple[int, int]]:
    try:
        pairs = ast.literal_eval(given) if isinstance(given, str) else given
        filters = [(_positive(width), _positive(channels)) for width, channels in pairs]
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError):
        filters = []
    if not filters:
        raise ValueError(f"must be (width, channels) pairs, such as [(1, 64)], not {shown(given)}")
    return filters


def _read_file(given: Any) -> str:
    if not isinstance(given, str) or not os.path.isfile(given):
        raise ValueError(f"there is no file {shown(given)}")
    return given


def unread(reason: str) -> Kind:
    """An option that nothing reads: every value is refused."""

    def read_nothing(given: Any) -> NoReturn:
        raise ValueError(reason)

    return Kind(str, read_nothing)


SWITCH = Kind(str, _read_switch)
FLAG = Kind(bool, _read_flag)
LAYERS = Kind(str, _read_layers)
CUTOFFS = Kind(Any, _read_cutoffs)
FILTERS = Kind(Any, _read_filters)
FILE = Kind(str, _read_file)


def _finite(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ValueError(f"must be a number, not {shown(given)}")
    if not -math.inf < given < math.inf:
        raise ValueError(f"must be a finite number, not {given}")
    return given


def _within(given: float, least: float, most: float | None) -> float:
    if given < least:
        raise ValueError(f"must be at least {least}, not {given}")
    if most is not None and given > most:
        raise ValueError(f"must be at most {most}, not {given}")
    return given


class Option(NamedTuple):
    """A row of the table of options.

    Attributes:
        kind: its values.
        help: what it does; None where the option is fairseq's own.
        default: the value of an unset option.
        default_text: the default in words, if the value does not explain itself.
        readers: the mixers that read it.
        name: the option's name, if it differs from the field's.
        per_stack: whether encoder and decoder have an option each.
        reads: whether a reader with this ``MixerConfig`` uses the option.
        needs: in words, what makes a reader use it.
        impossible: why a reader's ``MixerConfig`` cannot work; None if it can.
        refused: why a command refuses one that works.
        fixed: by mixer, a value that overrides the option.
    """

    kind: Kind
    help: str | None = None
    default: Any = None
    default_text: str | None = None
    readers: tuple[str, ...] = ()
    name: str | None = None
    per_stack: bool = False
    reads: Callable[[Any], bool] = lambda config: True
    needs: str = ""
    impossible: Callable[[Any], str | None] = lambda config: None
    refused: Callable[[Any], str | None] = lambda config: None
    fixed: Mapping[str, Any] = MappingProxyType({})

    def stored(self) -> Any:
        """The default in the form that configurations store."""
        if isinstance(self.default, tuple):
            return ",".join(self.default)
        if self.kind is SWITCH and self.default is not None:
            return str(self.default).lower()
        return self.default

    def text(self) -> str:
        """The help with the default."""
        default = self.default_text or self.stored()
        if isinstance(default, float):
            default = f"{default:g}"
        prefix = "true or false: " if self.kind is SWITCH else ""
        suffix = "" if default is None or self.kind is FLAG else f" (default: {default})"
        return f"{prefix}{self.help}{suffix}"
