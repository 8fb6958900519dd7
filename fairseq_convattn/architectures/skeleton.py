"""Models that take no memory, to count parameters and to check state dicts."""

from argparse import Namespace

from fairseq.models import BaseFairseqModel
from torch._subclasses.fake_tensor import FakeTensorMode


class Vocabulary(list):
    """The part of a fairseq dictionary that building a model needs."""

    def __init__(self, types: int):
        super().__init__(range(types))
        self.nspecial = types  # none is spelled, for character inputs

    def pad(self) -> int:
        return 1


def skeleton(
    model: type[BaseFairseqModel], args: Namespace, types: int, target_types: int | None = None
) -> BaseFairseqModel:
    """The model that ``args`` describes, of fake tensors. ``max_positions`` is 512 by default.

    Args:
        types: the vocabulary's size; with ``target_types`` the source's.

    Raises:
        ValueError: an option cannot work; the message names it.
    """
    task = Namespace(
        source_dictionary=Vocabulary(types),
        target_dictionary=Vocabulary(target_types or types),
        args=Namespace(max_target_positions=None, tokens_per_sample=1),
        max_positions=lambda: 512,
    )
    with FakeTensorMode():
        return model.build_model(Namespace(**vars(args)), task)
