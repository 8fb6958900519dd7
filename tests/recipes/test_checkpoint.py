"""Evaluating a checkpoint instead of training one."""

import json
import shutil

import pytest
import torch
from conftest import ROOT, SHRUNK, train

from fairseq_convattn.checkpoint_files import write_checkpoint
from fairseq_convattn.recipes.__main__ import main
from fairseq_convattn.recipes.checkpoint import evaluated, restore_last, updates_done


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(data, folder, "--arch", "lightweight_conv_tiny", *SHRUNK, "--max-update", "2")
    return folder / "checkpoint_last.pt"


def test_goes_straight_to_generating_and_scoring(trained, data, tmp_path, capsys):
    output = tmp_path / "run"
    arguments = ["wmt16_en_de", "--checkpoint", str(trained), "--output", str(output)]
    main([*arguments, "--data", str(data)])
    printed = capsys.readouterr().out
    assert f"average: nothing to do, {trained} is used as it is" in printed
    assert "--beam 5 --lenpen 0.5" in printed
    assert "newstest2014 BLEU: " in printed and "lightweight 28.90 (difference -" in printed
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert results["mixer"] == "lightweight" and set(results["stages"]) == {"generate", "score"}
    score, detokenised = results["scores"]
    assert "|tok:none|" in score["signature"] and score["signature"].endswith("|compounds:split")
    assert score["difference"]["dynamic"] == pytest.approx(score["score"] - 29.7)
    assert detokenised["name"] == "newstest2014 BLEU, detokenised"
    assert "|tok:13a|" in detokenised["signature"] and not detokenised["published"]
    assert "|detok:sacremoses-de-both-" in detokenised["signature"]  # T- lines are tokens


def test_data_with_another_dictionary_are_refused(trained, data, tmp_path):
    model = tmp_path / "model" / "model.pt"
    model.parent.mkdir()
    shutil.copyfile(trained, model)
    arguments = ["wmt16_en_de", "--checkpoint", str(model), "--output", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="has no dictionary: --data is the binarised test set"):
        main([*arguments, "--data", str(tmp_path)])
    (model.parent / "dict.src.txt").write_text("other 1\n")
    with pytest.raises(SystemExit, match="dict.src.txt is not .*: the data have to be binarised"):
        main([*arguments, "--data", str(data)])
    assert not (tmp_path / "run").exists()


def test_trains_nothing(trained):
    with pytest.raises(SystemExit, match="--checkpoint needs no stage train"):
        main(["wmt16_en_de", "train", "--checkpoint", str(trained)])
    with pytest.raises(SystemExit, match="which mixer it has: it goes with no --mixer"):
        main(["wmt16_en_de", "--checkpoint", str(trained), "--mixer", "dynamic"])


@pytest.mark.parametrize(
    ("file", "mixer"),
    [
        ("light/checkpoint_last.as_written.pt", "lightweight"),
        ("dynamic/checkpoint_last.pt", "dynamic"),
    ],
)
def test_published_checkpoints_are_converted(shared, tmp_path, capsys, file, mixer):
    checkpoint = shared / "legacy" / file
    assert evaluated(checkpoint).published_format
    main(["wmt16_en_de", "--checkpoint", str(checkpoint), "--data", str(tmp_path), "--dry-run"])
    printed = capsys.readouterr().out
    assert f"convert_checkpoint.py {checkpoint} " in printed
    assert f", {mixer}, seed" in printed


@pytest.mark.slow
@pytest.mark.ci
def test_a_published_checkpoint_is_scored(shared, tmp_path, capsys):
    folder = shared / "legacy" / "light"
    arguments = ["--checkpoint", str(folder / "checkpoint_last.as_written.pt")]
    arguments += ["--data", str(folder / "data"), "--output", str(tmp_path / "run")]
    main(["wmt16_en_de", *arguments])
    assert "newstest2014 BLEU: " in capsys.readouterr().out
    text = (tmp_path / "run" / "generated.test.txt").read_text(encoding="utf-8")
    sources = (folder / "data" / "test.en").read_text(encoding="utf-8").splitlines()
    assert text.count("\nH-") == len(sources)


def test_what_several_machines_trained_is_taken_up_when_it_is_done(tmp_path, capsys):
    output = tmp_path / "run"
    arguments = ["multi30k", "train", "--gpus", "1", "--nodes", "2", "--output", str(output)]
    checkpoints = output / "checkpoints"
    for updates in (None, 7_999):
        if updates:
            checkpoints.mkdir()
            state = {"model": {}, "optimizer_history": [{"num_updates": updates}]}
            write_checkpoint(state, checkpoints / "checkpoint_last.pt")
        main(arguments)
        printed = capsys.readouterr().out
        assert f"training is at update {updates or 0:,} of 8,000; start it with" in printed
        assert "\ntorchrun --nnodes 2" in printed and "\nsrun --nodes 2" in printed
    (checkpoints / "checkpoint_last.pt").unlink()
    state["optimizer_history"][-1]["num_updates"] = 8_000
    write_checkpoint(state, checkpoints / "checkpoint_last.pt")
    main(arguments)
    assert "train: done already" in capsys.readouterr().out


def test_a_last_checkpoint_that_was_cut_short_is_copied_again(tmp_path):
    state = {"model": {}, "optimizer_history": [{"num_updates": 7}]}
    write_checkpoint(state, tmp_path / "checkpoint1.pt")
    last = tmp_path / "checkpoint_last.pt"
    assert updates_done(tmp_path) == 0
    restore_last(tmp_path)
    assert not last.exists()  # it was never begun
    last.write_bytes((tmp_path / "checkpoint1.pt").read_bytes()[:-100])
    restore_last(tmp_path)
    assert torch.load(last)["optimizer_history"] == state["optimizer_history"]
    assert updates_done(tmp_path) == 7
