"""Options of fairseq's commands: their values, and checks of fairseq-train's by its own parser."""

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from fairseq.data.data_utils import post_process
from fairseq.options import get_training_parser, parse_args_and_arch


def option_of(word: str) -> str:
    """The option that a word of a command line names: ``--lr`` of ``--lr=1``, ``-a`` of ``-aNAME``;
    of a value its beginning."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def values_of(options: Sequence[str], *names: str, **defaults: str) -> Namespace:
    """The values of some options, else ``defaults`` or None. An option without a value has
    None."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(name, *(["-a"] if name == "--arch" else ()), nargs="?")
    parser.set_defaults(**defaults)
    return parser.parse_known_args(options)[0]


def has_subwords(kind: str | None) -> bool:
    """Whether fairseq can join subwords of a kind, such as ``sentencepiece``."""
    try:
        post_process("", kind)
    except NotImplementedError:  # fairseq's answer to any other
        return False
    return True


class _Refused(Exception):
    """The parser's message."""


def refusal(arguments: Sequence[str]) -> str | None:
    """Why fairseq-train would refuse these arguments; None if it accepts them."""
    parser = get_training_parser()
    parser.error = _refuse
    logger = logging.getLogger("fairseq.utils")
    logger.disabled = True  # it would say that the plugin has been imported already
    try:
        parse_args_and_arch(parser, list(arguments))
    except (_Refused, ValueError) as error:
        return str(error)
    except SystemExit as error:  # of our models; argparse's own, for --help, is a number
        if not isinstance(error.code, str):
            raise
        return error.code.removeprefix("error: ")
    finally:
        logger.disabled = False
    return None


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)
