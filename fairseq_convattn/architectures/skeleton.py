"""Models that take no memory, to count parameters and to check state dicts."""

from argparse import Namespace

import torch

from .translation import ConvAttnModel


class _Vocabulary(list):
    """As much of a fairseq dictionary as building a model needs."""

    def pad(self) -> int:
        return 1


def skeleton(args: Namespace, source_types: int, target_types: int) -> ConvAttnModel:
    """The model that ``args`` describes, on the meta device.

    Raises:
        ValueError: an option cannot work; the message names it.
    """
    task = Namespace(
        source_dictionary=_Vocabulary(range(source_types)),
        target_dictionary=_Vocabulary(range(target_types)),
    )
    with torch.device("meta"):
        return ConvAttnModel.build_model(args, task)
