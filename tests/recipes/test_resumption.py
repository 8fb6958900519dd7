"""A training that was resumed is the one that was not interrupted, bit for bit."""

from pathlib import Path

import conftest
import pytest
import torch
from conftest import SHRUNK, forget_earlier_trainings, same_weights
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import train as train_command

from fairseq_convattn.recipes import catalogue
from fairseq_convattn.recipes.__main__ import command_line, resolve

EPOCHS, UPDATES_BEFORE = 4, 5  # in the middle of the second epoch


def train(data, output, precision: str, *further: str) -> Path:
    """The last checkpoint of a recipe's own command for training, run in this process."""
    given = command_line().parse_args(
        ["multi30k", "--smoke", "--data", str(data), "--output", str(output)]
    )
    recipe = catalogue.RECIPES["multi30k"]
    length = ("--max-epoch", str(EPOCHS), "--max-update", "100", "--max-tokens", "1000")
    settings = resolve(given, recipe, [precision])
    words = recipe.stages(settings)[1].commands[0].words()
    forget_earlier_trainings()
    parser = options.get_training_parser()
    arguments = options.parse_args_and_arch(parser, [*words[1:], *length, *further])
    train_command.main(convert_namespace_to_omegaconf(arguments))
    return output / "checkpoints" / "checkpoint_last.pt"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["--fp32", pytest.param("--bf16", marks=pytest.mark.ci)])
def test_in_the_middle_of_an_epoch_with_dropout_and_dropconnect(data, tmp_path, precision):
    whole = train(data, tmp_path / "whole", precision)
    updates = torch.load(whole)["optimizer_history"][-1]["num_updates"]
    assert updates > UPDATES_BEFORE and updates % EPOCHS == 0 and UPDATES_BEFORE * EPOCHS % updates
    train(data, tmp_path / "part", precision, "--max-update", str(UPDATES_BEFORE))
    part = train(data, tmp_path / "part", precision)
    assert same_weights(whole, part, "last_optimizer_state")


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("--amp",)], ids=("float32", "amp"))
def test_patience_counts_on(data, tmp_path, precision):
    """The loss never improves, so that three validations after the first one end the training."""
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--optimizer", "convattn_adam")
    given = (*given, *precision, "--lr", "1e-30", "--patience", "3", "--max-update", "1000")
    whole, part = tmp_path / "whole", tmp_path / "part"
    conftest.train(data, whole, *given, "--max-epoch", "9")
    conftest.train(data, part, *given, "--max-epoch", "2")
    conftest.train(data, part, *given, "--max-epoch", "9")
    assert (whole / "checkpoint4.pt").exists() and not (whole / "checkpoint5.pt").exists()
    assert (part / "checkpoint4.pt").exists() and not (part / "checkpoint5.pt").exists()
    conftest.train(data, part, *given, "--max-epoch", "6", "--reset-meters")
    assert (part / "checkpoint6.pt").exists()
