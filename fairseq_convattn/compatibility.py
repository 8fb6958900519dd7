"""What fairseq needs to run on today's numpy and torch."""

import argparse
from types import SimpleNamespace

import numpy
import torch


def apply() -> None:
    """Restore ``numpy.compat.long`` (fairseq's batching by length and by sentence reads
    it, numpy 2 removed it) and let checkpoints from before fairseq 0.10 keep their
    options in an ``argparse.Namespace`` under torch's safe loading."""
    if not hasattr(numpy, "compat"):
        numpy.compat = SimpleNamespace(long=int)
    torch.serialization.add_safe_globals([argparse.Namespace])
