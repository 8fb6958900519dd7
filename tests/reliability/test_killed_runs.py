"""A training that was killed goes on, and ends where the uninterrupted one does."""

import errno
import os
import re
import shutil
import time
import zipfile
from argparse import Namespace
from unittest.mock import Mock

import pytest
import torch
from conftest import SHRUNK, generate, same_weights, slow_but, task_of, train, validate

from fairseq_convattn.architectures.config import LANGUAGE_MODEL, complete
from fairseq_convattn.architectures.language_model import ConvAttnLanguageModel
from fairseq_convattn.architectures.presets import ARCHITECTURE_NAMES
from fairseq_convattn.checkpoints.averaging import average_checkpoints
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.checkpoints.recovery import is_whole, newest_whole
from fairseq_convattn.mixers import MIXERS

pytestmark = pytest.mark.reliability

CONVOLUTIONS = ("lightweight", "dynamic")
RANDOM = (
    *("--dropout", "0.3", "--encoder-layerdrop", "0.3", "--decoder-layerdrop", "0.3"),
    *("--update-epoch-batch-itr", "True"),
)


def options(mixer: str) -> tuple[str, ...]:
    """A tiny model that draws random numbers wherever it can."""
    dropped = "--weight-dropout" if mixer in CONVOLUTIONS else "--attention-dropout"
    name = ARCHITECTURE_NAMES[mixer].format("tiny")
    return ("--arch", name, *SHRUNK, *RANDOM, dropped, "0.2")


def assert_same(first, second) -> None:
    ends = (folder / "checkpoint_last.pt" for folder in (first, second))
    assert same_weights(*ends, "last_optimizer_state")


QUICK = ("dynamic", "--max-update", "0")
EVERY = [
    pytest.param(
        mixer,
        where,
        workers,
        marks=[] if (mixer, *where[:1], workers) == QUICK else pytest.mark.slow,
        id=f"{mixer}, {where[0][2:]}, {workers} workers",
    )
    for mixer in MIXERS
    for where in (("--max-update", "4", "11"), ("--max-epoch", "1", "2"))
    for workers in ("0", "2")
]


@pytest.mark.parametrize(("mixer", "where", "workers"), EVERY)
def test_resumed_equals_uninterrupted(data, tmp_path, mixer, where, workers):
    """In the middle of an epoch of seven updates, and at its end."""
    option, begin, end = where
    given = (*options(mixer), "--num-workers", workers, "--max-update", "99")
    train(data, tmp_path / "whole", *given, option, end)
    for stop in (begin, end):
        train(data, tmp_path / "resumed", *given, option, stop)
    assert_same(tmp_path / "whole", tmp_path / "resumed")


DAMAGE = {
    "zeros": lambda content: bytes(len(content)),
    "cut": lambda content: content[:-100],
    "empty": lambda content: b"",
    "one byte": lambda content: b"P",
    "zeros at the end": lambda content: content[:-5000] + bytes(5000),
    "zeros in the middle": lambda content: content[:3000] + bytes(2000) + content[5000:],
}


@pytest.fixture(scope="module")
def interrupted(data, tmp_path_factory):
    """Trained for 4 updates with a checkpoint after 2 and 4; for 6; the options of both."""
    given = (*options("dynamic"), "--save-interval-updates", "2", "--no-epoch-checkpoints")
    folder = tmp_path_factory.mktemp("interrupted")
    train(data, folder / "four", *given, "--max-update", "4")
    train(data, folder / "six", *given, "--max-update", "6")
    return folder, given


@pytest.mark.parametrize("damage", slow_but(DAMAGE, "empty", "zeros in the middle"))
def test_a_damaged_last_checkpoint_is_passed_over(interrupted, data, tmp_path, damage, caplog):
    folder, given = interrupted
    run = shutil.copytree(folder / "four", tmp_path / "run")
    last = run / "checkpoint_last.pt"
    last.write_bytes(DAMAGE[damage](last.read_bytes()))
    old, new = "checkpoint\nline\n.pt.tmp", "checkpoint_1\n3.pt.tmp"
    for name, age in ((old, 3600), (new, 0)):
        (run / name).write_bytes(b"PK half")
        os.utime(run / name, (time.time() - age,) * 2)
    train(data, run, *given, "--max-update", "6")
    (line,) = (line for line in caplog.messages if "is damaged" in line)
    assert line.startswith(f"{str(last)!r} is damaged: training goes on from '{run}/checkpoint")
    kept = [path.name for path in run.glob("*.tmp")]
    assert kept == [new]  # which another training may be writing
    assert not re.search("\n(line|3)", caplog.text)  # a log is text of this program
    assert_same(run, folder / "six")


def test_the_newest_whole_one_is_taken(interrupted, tmp_path):
    """And neither an average nor what is not a checkpoint."""
    run = shutil.copytree(interrupted[0] / "four", tmp_path / "run")
    (run / "checkpoint_best.pt").unlink(missing_ok=True)
    average_checkpoints([run / "checkpoint_1_4.pt"], run / "checkpoint_average.pt")
    torch.save({"w": torch.ones(2)}, run / "checkpoint_other.pt")
    os.utime(run / "checkpoint_1_2.pt")  # what counts is the number of updates
    assert newest_whole(run).name == "checkpoint_1_4.pt"
    (run / "checkpoint_1_4.pt").write_bytes((run / "checkpoint_1_4.pt").read_bytes()[:-9])
    assert newest_whole(run).name == "checkpoint_1_2.pt"


def test_a_whole_checkpoint_is_read_twice(interrupted, data, tmp_path, monkeypatch):
    """Once for its checksums, once for what it holds."""
    folder, given = interrupted
    run = shutil.copytree(folder / "four", tmp_path / "run")
    check = Mock(side_effect=zipfile.ZipFile.testzip)
    monkeypatch.setattr(zipfile.ZipFile, "testzip", lambda archive: check(archive))
    train(data, run, *given, "--max-update", "5")
    assert check.call_count == 1


def test_without_any_whole_checkpoint_training_begins_anew(interrupted, data, tmp_path, caplog):
    folder, given = interrupted
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    train(data, tmp_path, *given, "--max-update", "6")
    assert "no other checkpoint is there: training begins anew" in caplog.text
    assert (tmp_path / "checkpoint_last.pt.damaged").read_bytes() == b"PK"
    assert_same(tmp_path, folder / "six")


def test_a_damaged_file_that_was_asked_for_is_refused(interrupted, data, tmp_path):
    folder, given = interrupted
    (tmp_path / "cut.pt").write_bytes((folder / "four" / "checkpoint_last.pt").read_bytes()[:-9])
    with pytest.raises(ValueError, match="cut.pt: it was cut off or is damaged"):
        train(data, tmp_path / "new", *given, "--restore-file", str(tmp_path / "cut.pt"))


def test_a_last_checkpoint_that_is_none_is_refused(interrupted, data, tmp_path):
    torch.save([1], tmp_path / "checkpoint_last.pt")
    with pytest.raises(CheckpointError, match="checkpoint_last.pt: not a fairseq checkpoint"):
        train(data, tmp_path, *interrupted[1])


def test_a_full_disk_costs_nothing_but_the_last_save(interrupted, data, tmp_path, monkeypatch):
    """The copy to checkpoint_last.pt breaks off; the same command goes on."""
    folder, given = interrupted
    run = shutil.copytree(folder / "four", tmp_path / "run")

    def full(source, target, **_):
        with open(source, "rb") as file, open(target, "wb") as half:
            half.write(file.read()[:2000])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(shutil, "copyfile", full)
        with pytest.raises((OSError, AssertionError)):
            train(data, run, *given, "--max-update", "6")
    assert {path.name for path in run.glob("checkpoint_1_*.pt")} >= {"checkpoint_1_4.pt"}
    train(data, run, *given, "--max-update", "6")
    assert_same(run, folder / "six")


def test_saving_within_epochs_without_new_batches_is_warned_about(data, tmp_path, caplog):
    once = ("--max-update", "1", "--disable-validation", "--save-interval-updates", "2")
    for regrouped in ("True", "False"):
        given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--update-epoch-batch-itr", regrouped)
        train(data, tmp_path / regrouped, *given, *once)
        assert ("add --update-epoch-batch-itr True" in caplog.text) == (regrouped == "False")


def test_nothing_in_a_model_is_whatever_was_in_memory(monkeypatch):
    """fairseq's adaptive softmax and input keep a tensor that they never set."""
    uninitialised = torch.FloatTensor
    monkeypatch.setattr(torch, "FloatTensor", lambda n: uninitialised(n).fill_(float("nan")))
    args = complete(
        Namespace(
            **{"decoder_embed_dim": 16, "decoder_layers": 1, "decoder_attention_heads": 2},
            **{"adaptive_input": "true", "adaptive_softmax_cutoff": "10,20"},
            tie_adaptive_weights="true",
            max_target_positions=9,
        ),
        LANGUAGE_MODEL,
    )
    state = ConvAttnLanguageModel.build_model(args, task_of(types=26)).state_dict()
    found = [name for name in state if name.endswith("_float_tensor")]
    assert len(found) == 2 and all(value.isfinite().all() for value in state.values())


def test_a_training_continues_in_other_spellings(data, tmp_path):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--encoder-kernel-sizes", "3,5")
    first = ("--encoder-glu", "true", "--decoder-kernel-sizes", "5")
    train(data, tmp_path, *given, *first, "--max-update", "1")
    respelled = ("--encoder-glu", "yes", "--decoder-kernel-sizes", "5,5")
    respelled += ("--encoder-kernel-sizes", "[3, 5]")
    train(data, tmp_path, *given, *respelled, "--max-update", "2")
    with pytest.raises(CheckpointError, match="--encoder-kernel-sizes .*, not 5,3"):
        train(data, tmp_path, *given, "--encoder-kernel-sizes", "5,3", "--max-update", "3")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (("--attention-terms", "content,alibi"), " --attention-terms content,fixed"),
        (("--decoder-attention-heads", "2"), " --decoder-attention-heads 4"),
        (("--decoder-layers", "1"), " --decoder-layers 2, not 1"),
        (("--share-all-embeddings",), "out --share-all-embeddings: "),
    ],
)
def test_a_training_does_not_continue_as_another_network(data, tmp_path, changed, named):
    """All weights have the same names and shapes, or would load."""
    first = ("--arch", "composite_attention_tiny", *SHRUNK, "--attention-terms", "content,fixed")
    train(data, tmp_path, *first, "--max-update", "1")
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    with pytest.raises(CheckpointError, match=f"was trained with{named}"):
        train(data, tmp_path, *first, *changed, "--max-update", "2")
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    train(data, tmp_path, *first, "--dropout", "0.5", "--max-update", "2")


@pytest.mark.slow
def test_the_other_direction_is_another_model(data, tmp_path, caplog):
    given, reversed_ = ("--arch", "dynamic_conv_tiny", *SHRUNK), ("-s", "tgt", "-t", "src")
    train(data, tmp_path, *given, "--max-update", "1")
    last = tmp_path / "checkpoint_last.pt"
    with pytest.raises(CheckpointError, match="from src to tgt, not from tgt to src: choose a"):
        train(data, tmp_path, *given, *reversed_, "--max-update", "2")
    generate(data, last)
    assert "translate from" not in caplog.text
    generate(data, last, *reversed_)
    assert "trained to translate from src to tgt, not from tgt to src" in caplog.text
    caplog.clear()
    state = torch.load(last)  # as fairseq alone stores the languages, and where it infers them
    del state["cfg"]["languages"]
    for stored in ("src", "tgt"), (None, None):
        state["cfg"]["task"].update(zip(("source_lang", "target_lang"), stored, strict=True))
        torch.save(state, tmp_path / "fairseqs.pt")
        caplog.clear()
        generate(data, tmp_path / "fairseqs.pt", *reversed_)
        assert ("trained to translate from src" in caplog.text) == (stored != (None, None))
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for file in data.iterdir():
        name = file.name.replace("src", "en").replace("tgt", "de")
        (renamed / name).symlink_to(file)
    assert validate(renamed, last, "--task", "translation") > 0
    named = ("--restore-file", str(last), "--max-update", "2")
    with pytest.raises(CheckpointError, match="from tgt to src: give it as --finetune-from-model"):
        train(data, tmp_path / "other", *given, *reversed_, *named)
    tuned = ("--finetune-from-model", str(last), "--max-update", "1")
    train(data, tmp_path / "tuned", *given, *reversed_, *tuned)
    with pytest.raises(CheckpointError, match="src to tgt, not .*: average checkpoints of one dir"):
        average_checkpoints([last, tmp_path / "tuned/checkpoint_last.pt"], tmp_path / "mean.pt")


def test_a_training_of_fairseqs_own_model_goes_on(data, tmp_path, caplog):
    for updates in ("1", "2"):
        train(data, tmp_path, "--arch", "transformer", *SHRUNK, "--max-update", updates)
    assert any("Loaded checkpoint" in message for message in caplog.messages)


def test_a_finished_training_makes_no_more_updates(data, tmp_path, caplog):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK)
    train(data, tmp_path, *given, "--max-update", "2")
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.pt")}
    train(data, tmp_path, *given, "--max-update", "2")
    assert "checkpoint_last.pt has 2 of --max-update 2. Nothing is trained" in caplog.text
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.pt")} == before
    train(data, tmp_path, *given, "--max-update", "3")
    assert (tmp_path / "checkpoint_last.pt").read_bytes() != before["checkpoint_last.pt"]


def test_a_training_killed_in_its_last_save_gets_a_last_checkpoint(data, tmp_path):
    given = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--max-update", "2")
    train(data, tmp_path, *given)
    last = tmp_path / "checkpoint_last.pt"
    os.truncate(last, 2000)
    train(data, tmp_path, *given)
    assert is_whole(last)
    last.unlink()
    train(data, tmp_path, *given, "--restore-file", str(tmp_path / "checkpoint_best.pt"))
    assert is_whole(last)


def test_nor_does_a_training_of_fairseqs_transformer(data, tmp_path):
    train(data, tmp_path, "--arch", "transformer_tiny", *SHRUNK, "--max-update", "1")
    changed = ("--decoder-attention-heads", "2", "--max-update", "2")
    difference = (
        "--arch transformer_tiny, not attention_tiny .with --decoder-attention-heads 4, not"
    )
    with pytest.raises(CheckpointError, match=difference):
        train(data, tmp_path, "--arch", "attention_tiny", *SHRUNK, *changed)


def test_a_checkpoint_that_is_not_there_is_no_new_beginning(data, tmp_path):
    given = ("--arch", "transformer_tiny", *SHRUNK, "--max-update", "1")
    with pytest.raises(CheckpointError, match="--restore-file best.pt: there is no such file"):
        train(data, tmp_path, *given, "--restore-file", "best.pt")
    assert not [*tmp_path.glob("*.pt")]


@pytest.mark.slow
def test_nor_does_it_from_another_checkpoint_than_the_last(data, tmp_path, caplog):
    first = ("--arch", "dynamic_conv_tiny", *SHRUNK, "--save-interval-updates", "1")
    changed = (*first, "--weight-norm", "sigmoid", "--max-update", "3")
    train(data, tmp_path, *first, "--max-update", "2")
    whole = tmp_path / "checkpoint_1_1.pt"
    assert whole.is_file()
    with pytest.raises(CheckpointError, match="checkpoint_1_1.pt was trained .* repeat"):
        train(data, tmp_path, *changed, "--restore-file", str(whole))
    with pytest.raises(CheckpointError, match="give it as --finetune-from-model, if the w"):
        train(data, tmp_path / "new", *changed, "--restore-file", str(whole))
    os.truncate(tmp_path / "checkpoint_last.pt", 2000)
    with pytest.raises(
        CheckpointError, match="checkpoint_(best|1_.).pt was trained .* --weight-norm"
    ):
        train(data, tmp_path, *changed)
    tuned = ("--finetune-from-model", str(whole))
    with pytest.raises(CheckpointError, match="was trained with --weight-norm"):
        train(data, tmp_path / "once", *changed, *tuned, "--continue-once", str(whole))
    assert "something else" not in caplog.text
    train(data, tmp_path / "tuned", *changed, *tuned)
    assert "--weight-norm softmax, not sigmoid: the new model computes something" in caplog.text
    with pytest.raises(CheckpointError, match="choose a new --save-dir"):  # it has a last one
        train(data, tmp_path / "tuned", *first, *tuned, "--reset-optimizer", "--max-update", "9")
    reset = ("--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler")
    train(data, tmp_path / "reset", *changed, "--restore-file", str(whole), *reset)
