"""Processes that load data."""

import subprocess
import sys

import pytest
from conftest import PLUGIN, ROOT

TRAINING = """
import gc, multiprocessing, sys
from fairseq_cli.train import cli_main
from fairseq_convattn.architectures.translation import ConvAttnModel

counts, step = [], ConvAttnModel.set_num_updates

def count(model, updates):
    counts.append(len(multiprocessing.active_children()))
    return step(model, updates)

ConvAttnModel.set_num_updates = count
gc.disable()
cli_main()
print(max(counts))
"""


@pytest.mark.slow
@pytest.mark.reliability
@pytest.mark.parametrize("more", [(), ("--disable-validation",)])
def test_workers_of_earlier_epochs_end(data, more):
    """One lives for the epoch, one more from its end to the first update of the next."""
    options = "--arch dynamic_conv_tiny --encoder-layers 1 --decoder-layers 1 --max-epoch 6"
    options += " --optimizer adam --max-tokens 2000 --num-workers 1 --no-save --cpu"
    options += " --update-epoch-batch-itr True --required-batch-size-multiple 1"
    run = subprocess.run(
        [sys.executable, "-c", TRAINING, data, "--user-dir", PLUGIN, *options.split(), *more],
        capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert 1 <= int(run.stdout.split()[-1]) <= 3
