"""Another dictionary than the training's is seen where its size tells nothing."""

import shutil
from argparse import Namespace

import pytest
import torch
from conftest import SHRUNK, SHRUNK_LM, eval_lm, generate, train
from fairseq.data import Dictionary

from fairseq_convattn.architectures.language_model import ConvAttnLanguageModel
from fairseq_convattn.architectures.translation import ConvAttnModel
from fairseq_convattn.checkpoints.averaging import average_checkpoints

pytestmark = pytest.mark.reliability


def reordered(data, folder, *names):
    """The data with the first two types of each dictionary swapped."""
    shutil.copytree(data, folder)
    for name in names:
        first, second, *others = (folder / name).read_text(encoding="utf-8").splitlines()
        (folder / name).write_text("\n".join((second, first, *others, "")), encoding="utf-8")
    return folder


def test_a_reordered_dictionary_is_refused(trained, data, tmp_path):
    """By a checkpoint of the training, by an average; the right one is not."""
    average_checkpoints([trained], tmp_path / "average.pt")
    for checkpoint in (trained, tmp_path / "average.pt"):
        assert len(generate(data, checkpoint, "--max-len-b", "3", "--beam", "1")) == 13
        for side in ("src", "tgt"):
            other = tmp_path / f"{side}-{checkpoint.stem}"
            reordered(data, other, f"dict.{side}.txt")
            with pytest.raises(ValueError, match="dictionary is not the one that the model was"):
                generate(other, checkpoint)


@pytest.mark.parametrize(
    "option", ["--save-dir", "--restore-file", "--finetune-from-model", "--continue-once"]
)
def test_training_does_not_begin_from_weights_of_a_reordered_dictionary(
    option, trained, data, tmp_path
):
    start = str(shutil.copy(trained, tmp_path / "checkpoint_last.pt"))
    other = reordered(data, tmp_path / "other", "dict.tgt.txt")
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1", option)
    given += (str(tmp_path) if option == "--save-dir" else start,)
    with pytest.raises(ValueError, match=f"target dictionary .* {start} was .*; binarise the data"):
        train(other, tmp_path / "new", *given)
    train(data, tmp_path / "new", *given)


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model", "--continue-once"])
def test_training_does_not_begin_from_a_folder(option, trained, data, tmp_path):
    """fairseq would begin from random weights."""
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1")
    with pytest.raises(ValueError, match=f"{trained.parent} is a folder; give one of its .pt"):
        train(data, tmp_path / "new", *given, option, str(trained.parent))
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("option", ["--restore-file", "--continue-once"])
def test_training_does_not_begin_from_nothing(option, data, tmp_path):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1")
    with pytest.raises(ValueError, match=f"{option} missing.pt: there is no such file"):
        train(data, tmp_path / "new", *given, option, "missing.pt")


def test_checkpoints_of_before_say_nothing(trained, data, tmp_path):
    state = torch.load(trained)
    del state["cfg"]["dictionaries"]
    torch.save(state, tmp_path / "before.pt")
    other = reordered(data, tmp_path / "other", "dict.tgt.txt")
    assert len(generate(other, tmp_path / "before.pt", "--max-len-b", "3", "--beam", "1")) == 13
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "1", "--finetune-from-model")
    train(other, tmp_path / "tuned", *given, str(tmp_path / "before.pt"))
    assert (tmp_path / "tuned" / "checkpoint_last.pt").exists()


@pytest.mark.parametrize("stored", [[""], {"source": 1}])
def test_digests_that_are_none_are_refused(trained, data, tmp_path, stored):
    state = torch.load(trained)
    state["cfg"]["dictionaries"] = stored
    torch.save(state, tmp_path / "changed.pt")
    with pytest.raises(ValueError, match="cfg.dictionaries is .* and no list of digests; remove"):
        generate(data, tmp_path / "changed.pt")


def test_a_language_models_dictionary(monolingual, tmp_path):
    options = ("--task", "language_modeling", "--arch", "dynamic_conv_lm_tiny", *SHRUNK_LM)
    train(monolingual, tmp_path, *options, "--max-update", "1", "--tokens-per-sample", "16")
    last = tmp_path / "checkpoint_last.pt"
    sample = ("--tokens-per-sample", "16")
    assert eval_lm(monolingual, last, *sample) > 0
    with pytest.raises(ValueError, match="source dictionary is not the one"):
        eval_lm(reordered(monolingual, tmp_path / "other", "dict.txt"), last, *sample)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("model", [ConvAttnModel, ConvAttnLanguageModel])
def test_a_task_without_a_dictionary_is_refused(model, side):
    """As fairseq's of speech are."""
    dictionaries = {"source_dictionary": Dictionary(), "target_dictionary": Dictionary()}
    task = Namespace(**{**dictionaries, f"{side}_dictionary": None})
    with pytest.raises(ValueError, match=f"task Namespace has no {side} dictionary"):
        model.build_model(Namespace(), task)
