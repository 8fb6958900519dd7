"""What a user adds to fairseq-train's options, read as fairseq-train will read it."""

import logging
from typing import NoReturn

from .command import Command
from .errors import RecipeError


def require_known(train: Command) -> None:
    """See that fairseq-train accepts a command with what was added to it.

    Raises:
        RecipeError: it does not.
    """
    from fairseq.options import get_training_parser, parse_args_and_arch

    def refuse(message: str) -> NoReturn:
        raise RecipeError(f"after --: {message}")

    parser = get_training_parser()
    parser.error = refuse
    logger = logging.getLogger("fairseq.utils")
    logger.disabled = True  # it would say that the plugin has been imported already
    try:
        parse_args_and_arch(parser, train.words()[1:])
    except ValueError as error:
        refuse(str(error))
    finally:
        logger.disabled = False
