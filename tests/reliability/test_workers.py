"""Processes that load data."""

import gc
import multiprocessing

import pytest
from conftest import train

from fairseq_convattn.architectures.translation import ConvAttnModel


@pytest.mark.reliability
def test_workers_of_earlier_epochs_end(data, tmp_path, monkeypatch):
    """One lives for the epoch, one more from its end to the first update of the next."""
    counts, step = [], ConvAttnModel.set_num_updates

    def count(model, updates):
        counts.append(len(multiprocessing.active_children()))
        return step(model, updates)

    monkeypatch.setattr(ConvAttnModel, "set_num_updates", count)
    model = ("--arch", "dynamic_conv_tiny", "--encoder-layers", "1", "--decoder-layers", "1")
    epochs = ("--max-epoch", "6", "--max-update", "1000", "--num-workers", "1")
    gc.disable()
    try:
        train(data, tmp_path, *model, *epochs, "--update-epoch-batch-itr", "True", "--no-save")
    finally:
        gc.enable()
    assert max(counts) >= 1
    assert max(counts) <= 3, counts
