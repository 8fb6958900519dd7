"""Makes fairseq run on current versions of numpy and torch."""

import argparse
import collections
import typing
from types import SimpleNamespace

import numpy
import omegaconf
import torch
from fairseq.data import bucket_pad_length_dataset, data_utils
from fairseq.distributed.utils import _TensorPlaceholder

# Configuration as fairseq stores it: in an argparse.Namespace before version 0.10, in
# omegaconf's containers when it sends a checkpoint from one worker to the others. None
# of these runs code from the file; everything else in a checkpoint stays refused.
CONFIGURATION_TYPES = [
    argparse.Namespace,
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.AnyNode,
    omegaconf.base.ContainerMetadata,
    omegaconf.base.Metadata,
    collections.defaultdict,
    typing.Any,
    dict,
    list,
    int,
    _TensorPlaceholder,
]


def _get_buckets(sizes: numpy.ndarray, num_buckets: int) -> numpy.ndarray:
    """The lengths to which sequences are padded: those that as many sizes lie between."""
    shares = numpy.linspace(0, 100, num_buckets + 1)[1:]
    return numpy.unique(numpy.percentile(sizes, shares, method="lower"))


def apply() -> None:
    """Restore ``numpy.compat.long``, which fairseq's batching by length and by sentence
    reads and numpy 2 removed, ``get_buckets`` (``--num-batch-buckets``) with today's name of its
    option, and let torch load configurations safely."""
    if not hasattr(numpy, "compat"):
        numpy.compat = SimpleNamespace(long=int)
    for module in (data_utils, bucket_pad_length_dataset):
        module.get_buckets = _get_buckets
    torch.serialization.add_safe_globals(CONFIGURATION_TYPES)
