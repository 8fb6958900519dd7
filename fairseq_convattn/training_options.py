"""Checks options of fairseq-train by its own parser, without running it."""

import itertools
import logging
from collections.abc import Sequence
from typing import NoReturn

from fairseq.options import get_training_parser, parse_args_and_arch


def option_of(word: str) -> str:
    """The option that a word of a command line names: ``--lr`` of ``--lr=1``, ``-a`` of ``-aNAME``;
    of a value its beginning."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def task_of(options: Sequence[str]) -> str:
    """fairseq's name of the task that a command line gives."""
    found = [value for option, value in itertools.pairwise((*options, "")) if option == "--task"]
    found += [word.partition("=")[2] for word in options if word.startswith("--task=")]
    return found[-1] if found else "translation"


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
