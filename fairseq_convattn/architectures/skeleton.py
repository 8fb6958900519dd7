"""Models that take no memory, to count parameters and to check state dicts."""

from argparse import Namespace
from contextlib import AbstractContextManager

import torch
from fairseq.models import BaseFairseqModel
from torch._subclasses.fake_tensor import FakeTensorMode

from .language_model import ConvAttnLanguageModel
from .masked_language_model import ConvAttnMaskedLanguageModel
from .translation import ConvAttnModel


class Vocabulary(list):
    """The part of a fairseq dictionary that building a model needs."""

    def __init__(self, types: int):
        super().__init__(range(types))
        self.nspecial = types  # none is spelled, for character inputs

    def pad(self) -> int:
        return 1


def skeleton(args: Namespace, source_types: int, target_types: int) -> ConvAttnModel:
    """The encoder-decoder model that ``args`` describes, on the meta device.

    Raises:
        ValueError: an option cannot work; the message names it.
    """
    return _built(torch.device("meta"), ConvAttnModel, args, source_types, target_types)


def language_model_skeleton(
    args: Namespace, source_types: int, target_types: int
) -> ConvAttnLanguageModel:
    """The language model that ``args`` describes, on the meta device.

    Raises:
        ValueError: an option cannot work; the message names it.
    """
    return _built(torch.device("meta"), ConvAttnLanguageModel, args, source_types, target_types)


def masked_language_model_skeleton(args: Namespace, types: int) -> ConvAttnMaskedLanguageModel:
    """The masked language model that ``args`` describes, of fake tensors, because BERT's
    initialisation refuses meta tensors. ``max_positions`` defaults to 512.

    Raises:
        ValueError: an option cannot work; the message names it.
    """
    return _built(FakeTensorMode(), ConvAttnMaskedLanguageModel, args, types, types)


def _built(
    without_memory: AbstractContextManager,
    model: type[BaseFairseqModel],
    args: Namespace,
    source_types: int,
    target_types: int,
) -> BaseFairseqModel:
    task = Namespace(
        source_dictionary=Vocabulary(source_types),
        target_dictionary=Vocabulary(target_types),
        args=Namespace(max_target_positions=None, tokens_per_sample=1),
        max_positions=lambda: 512,
    )
    with without_memory:
        return model.build_model(Namespace(**vars(args)), task)
