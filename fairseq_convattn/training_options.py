"""What fairseq-train says to its options, before it is run."""

import logging
from collections.abc import Sequence
from typing import NoReturn

from fairseq.options import get_training_parser, parse_args_and_arch


class _Refused(Exception):
    """The parser's message."""


def refusal(arguments: Sequence[str]) -> str | None:
    """Why fairseq-train would not take these arguments; None if it would."""
    parser = get_training_parser()
    parser.error = _refuse
    logger = logging.getLogger("fairseq.utils")
    logger.disabled = True  # it would say that the plugin has been imported already
    try:
        parse_args_and_arch(parser, list(arguments))
    except (_Refused, ValueError) as error:
        return str(error)
    finally:
        logger.disabled = False
    return None


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)
