"""Evaluating a checkpoint instead of training one."""

import json
import os
import re
import shutil
import subprocess
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SHRUNK, train

from fairseq_convattn.checkpoints.files import write_checkpoint
from fairseq_convattn.checkpoints.recovery import restore_last
from fairseq_convattn.folder_lock import locked
from fairseq_convattn.recipes import catalogue, runner
from fairseq_convattn.recipes.__main__ import command_line, main, resolve
from fairseq_convattn.recipes.checkpoint import evaluated
from fairseq_convattn.recipes.command import RecipeError
from fairseq_convattn.recipes.record import results
from fairseq_convattn.recipes.runner import Runner
from fairseq_convattn.report.__main__ import main as report
from fairseq_convattn.run_records import write_json


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(data, folder, "--arch", "lightweight_conv_tiny", *SHRUNK, "--max-update", "2")
    return folder / "checkpoint_last.pt"


@pytest.mark.slow
def test_goes_straight_to_generating_and_scoring(trained, data, tmp_path, capsys):
    output = tmp_path / "run"
    arguments = ["wmt16_en_de", "--checkpoint", str(trained), "--output", str(output)]
    main([*arguments, "--data", str(data)])
    printed = capsys.readouterr().out
    assert f"average: nothing to do, {trained} is used as it is" in printed
    assert "--beam 5 --lenpen 0.5" in printed
    assert "newstest2014 BLEU: " in printed
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert results["seed"] is results["architecture"] is None
    assert results["mixer"] == "lightweight" and set(results["stages"]) == {"generate", "score"}
    score, detokenised = results["scores"]
    assert "|tok:none|" in score["signature"] and score["signature"].endswith("|compounds:split")
    assert score["difference"] == pytest.approx(score["score"] - 28.9)
    difference = f"(difference {score['difference']:+.2f})"  # that of no other mixer
    assert f"lightweight 28.90 {difference}, dynamic 29.70, attention 29.30\n" in printed
    assert detokenised["name"] == "newstest2014 BLEU, detokenised"
    assert detokenised["difference"] is None
    assert "|tok:13a|" in detokenised["signature"] and not detokenised["published"]
    assert "|detok:sacremoses-de-both-" in detokenised["signature"]  # T- lines are tokens


@pytest.mark.parametrize(
    ("options", "mixer"),
    [
        ({"decoder_mixers": "attention", "short_convolution": "low_rank"}, "short_conv"),
        (
            {"decoder_mixers": ["dynamic", "tisa"], "short_convolution": "static"},
            "dynamic,tisa with static short convolutions",
        ),
        ({"encoder_mixers": "dynamic", "decoder_mixers": "dynamic, dynamic"}, "dynamic"),
    ],
)
def test_the_mixer_of_a_checkpoint_is_named_as_its_architecture(options, mixer, tmp_path):
    model = tmp_path / "model.pt"
    write_checkpoint({"model": {}, "cfg": {"model": options}}, model)
    assert evaluated(model, "translation") == (False, mixer)


def test_a_checkpoint_adds_no_command_to_a_script(tmp_path, capsys):
    model = tmp_path / "new\ntouch name.pt"
    options = {"decoder_mixers": "dynamic\ntouch mixer\n#"}
    write_checkpoint({"model": {}, "cfg": {"model": options}}, model)
    main(["multi30k", "--checkpoint", str(model), "--dry-run"])
    script = f"PATH=\n{capsys.readouterr().out}"  # no command is found
    run = subprocess.run(["bash"], cwd=tmp_path, input=script, capture_output=True, text=True)
    assert "mkdir: No such file" in run.stderr and "touch: " not in run.stderr


@pytest.mark.parametrize("place", ["languages", "task", "args"])
def test_a_model_of_another_language_is_refused(place, tmp_path):
    model, task = tmp_path / "model.pt", {"source_lang": "en", "target_lang": "de"}
    state = {"model": {}, "cfg": {"languages": ["en", "de"]} if place == "languages" else None}
    state = {"model": {}, "cfg": {"task": task}} if place == "task" else state
    torch.save(state | ({"args": Namespace(**task)} if place == "args" else {}), model)
    with pytest.raises(SystemExit, match="model.pt translates into de, and the recipe into fr"):
        main(["wmt14_en_fr", "--checkpoint", str(model), "--dry-run"])
    assert evaluated(model, "translation", "de") == (False, "fairseq's own")


def test_a_task_that_has_no_options_has_no_language(tmp_path):
    write_checkpoint({"model": {}, "cfg": {"task": "translation"}}, tmp_path / "model.pt")
    assert evaluated(tmp_path / "model.pt", "translation", "de") == (False, "fairseq's own")


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


def test_a_score_stays_that_of_its_checkpoint_and_data(trained, data, tmp_path, monkeypatch):
    """Whatever the files are when the command is repeated."""

    def scored(words, log, stdout, logs_too) -> int:
        scores = {"BLEU": {"score": 1.0, "confidence": None}}
        write_json({"scores": scores, "signature": "|"}, stdout)
        return 0

    monkeypatch.setattr(runner, "run_command", scored)
    model, test = shutil.copy(trained, tmp_path / "model.pt"), shutil.copytree(data, tmp_path / "t")
    output = tmp_path / "run"
    arguments = ["wmt16_en_de", "--checkpoint", str(model), "--output", str(output)]
    arguments += ["--data", str(test)]
    main(arguments)
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    before = results["data"]
    assert results["seed"] is results["architecture"] is None  # of a training that is not ours
    score, _ = results["scores"]
    assert score["difference"] == pytest.approx(1.0 - 28.9)  # lightweight's, and no other's
    (test / "test.src-tgt.src.bin").write_bytes(b"other")
    main(arguments)
    assert json.loads((output / "results.json").read_text(encoding="utf-8"))["data"] == before
    (output / "stages" / "score.json").unlink()
    main(arguments)
    assert json.loads((output / "results.json").read_text(encoding="utf-8"))["data"] != before
    state = torch.load(trained)
    state["model"]["bias"] = torch.tensor([1.0])
    torch.save(state, model)
    with pytest.raises(SystemExit, match="other options .--checkpoint with SHA-256 .*; repeat th"):
        main(arguments)


@pytest.mark.parametrize("devices", [("--nodes", "4"), ("--fsdp",), ("--gpus", "8")])
def test_a_checkpoint_is_evaluated_on_one_device(trained, devices):
    with pytest.raises(SystemExit, match="--checkpoint is evaluated on one device"):
        main(["wmt16_en_de", "--checkpoint", str(trained), *devices, "--dry-run"])


def test_data_of_something_else_are_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes").touch()
    arguments = ["multi30k", "--data", str(tmp_path / "data"), "--output", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="--data .*data is there and has no folder bin"):
        main(arguments)
    assert not (tmp_path / "run").exists()


def test_trains_nothing(trained):
    with pytest.raises(SystemExit, match="--checkpoint needs no stage train"):
        main(["wmt16_en_de", "train", "--checkpoint", str(trained)])


@pytest.mark.parametrize(
    ("file", "mixer"),
    [
        ("light/checkpoint_last.as_written.pt", "lightweight"),
        ("dynamic/checkpoint_last.pt", "dynamic"),
    ],
)
def test_published_checkpoints_are_converted(shared, tmp_path, capsys, file, mixer):
    checkpoint = shared / "legacy" / file
    main(["wmt16_en_de", "--checkpoint", str(checkpoint), "--data", str(tmp_path), "--dry-run"])
    printed = capsys.readouterr().out
    assert f"cli.py convert {checkpoint} " in printed
    assert printed.splitlines()[0].endswith(f"; {mixer}")


@pytest.mark.slow
def test_a_published_checkpoint_is_scored(shared, tmp_path, capsys):
    folder = shared / "legacy" / "light"
    arguments = ["--checkpoint", str(folder / "checkpoint_last.as_written.pt")]
    arguments += ["--data", str(folder / "data"), "--output", str(tmp_path / "run")]
    main(["wmt16_en_de", *arguments])
    assert "newstest2014 BLEU: " in capsys.readouterr().out
    text = (tmp_path / "run" / "generated.test.txt").read_text(encoding="utf-8")
    sources = (folder / "data" / "test.en").read_text(encoding="utf-8").splitlines()
    assert text.count("\nH-") == len(sources)


def test_models_of_another_kind_are_refused(trained):
    for recipe, task in (("gbw", "language_modeling"), ("cnn_dm", "summarization")):
        with pytest.raises(SystemExit, match=f"is a model for translation, and .* for {task}"):
            main([recipe, "--checkpoint", str(trained), "--dry-run"])


def test_a_model_of_2019_of_another_kind_is_refused(tmp_path):
    """Its options are in a Namespace."""
    model = tmp_path / "model.pt"
    torch.save({"args": Namespace(task="translation", arch="lightconv"), "model": {}}, model)
    with pytest.raises(SystemExit, match="is a model for translation, and .* for language_model"):
        main(["gbw", "--checkpoint", str(model), "--dry-run"])


@pytest.mark.parametrize("since", ["0.9", "0.10"])
def test_fairseqs_lightconv_is_converted(since, tmp_path, capsys):
    options = Namespace(task="translation", arch="lightconv", decoder_conv_type="lightweight")
    stored = {"args": options} if since == "0.9" else {"cfg": {"model": options}}
    torch.save({**stored, "model": {}}, tmp_path / "model.pt")
    main(["wmt16_en_de", "--checkpoint", str(tmp_path / "model.pt"), "--dry-run"])
    printed = capsys.readouterr().out
    assert "cli.py convert " in printed and printed.splitlines()[0].endswith("; lightweight")


def test_the_precision_is_that_of_the_training(tmp_path):
    """Whatever this machine or a later command would choose."""
    arguments = ["multi30k", "--output", str(tmp_path)]
    recipe = catalogue.RECIPES["multi30k"]
    settings = resolve(command_line().parse_args(arguments), recipe, [])
    for option, expected in (("--bf16", "bfloat16"), ("--fp16", "float16"), ("", "float32")):
        record = {"train": {"commands": [f"fairseq-train data --lr 1 {option} --cpu"]}}
        assert results("", recipe, settings, record, [])["precision"] == expected
    stages = recipe.stages(settings)
    (training,) = (stage for stage in stages if stage.name == "train")
    Runner(tmp_path, stages).finish(training)
    other = resolve(command_line().parse_args(arguments), recipe, ["--fp32"])
    with pytest.raises(RecipeError, match="was run with other options .without --fp32"):
        Runner(tmp_path, recipe.stages(other)).check(["train"])
    other = resolve(command_line().parse_args(arguments), recipe, ["--max-tokens-valid", "9"])
    with pytest.raises(RecipeError, match="without --max-tokens-valid 9"):
        Runner(tmp_path, recipe.stages(other)).check(["train"])
    smaller = replace(recipe, batch=recipe.batch.of(2048))
    with pytest.raises(
        RecipeError, match=r"options \(--device-batch 4096, not 2048\); repeat them"
    ):
        Runner(tmp_path, smaller.stages(settings)).check(["generate"])


def test_training_goes_on_where_the_last_checkpoint_is_gone(prepared, tmp_path, monkeypatch):
    """From the newest one that is there."""
    arguments, checkpoints = prepared(), tmp_path / "run" / "checkpoints"
    checkpoints.mkdir()
    state = {"model": {}, "optimizer_history": [{"num_updates": 1}]}
    write_checkpoint(state, checkpoints / "checkpoint1.pt")
    monkeypatch.setattr(Runner, "run", lambda *_: None)
    main(arguments)
    assert (checkpoints / "checkpoint_last.pt").is_file()


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A command that trains, on a machine without GPUs and after the preparation."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    (tmp_path / "dict.en.txt").touch()
    places = ["--output", str(tmp_path / "run"), "--data", str(tmp_path)]
    recipe = catalogue.RECIPES["multi30k"]

    def command(*options: str) -> list[str]:
        arguments = ["multi30k", "train", *places, *options]
        stages = recipe.stages(resolve(command_line().parse_intermixed_args(arguments), recipe, []))
        with locked(tmp_path / "run", "stages"):
            Runner(tmp_path / "run", stages).finish(stages[0])
        return arguments

    return command


def test_what_several_machines_trained_is_taken_up_when_it_has_ended(prepared, tmp_path, capsys):
    """Wherever that is, as --patience can stop before --max-update; as it was begun; once."""
    arguments, output = prepared("--gpus", "1", "--nodes", "2"), tmp_path / "run"
    (output / "checkpoints").mkdir()

    def ended(node: int) -> None:
        main(arguments)
        lines = capsys.readouterr().out.splitlines()
        assert any("add -- --bf16 if yours support it" in line for line in lines)
        (torchrun,) = (line for line in lines if "; torchrun --nnodes 2" in line)
        last = torchrun.rpartition(" && ")[2]
        subprocess.run(last, shell=True, check=True, env={**os.environ, "NODE_RANK": str(node)})

    ended(0)
    main(arguments)  # without a checkpoint it has not
    assert "train has not ended; start it" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="was run with other options .--dropout 0.3, not 0.9"):
        main([*arguments, "--", "--dropout", "0.9"])
    (output / "training-ended").unlink(missing_ok=True)
    (output / "checkpoints" / "checkpoint_last.pt").touch()
    ended(1)  # the first machine says so
    with pytest.raises(SystemExit, match="was run with other options .--dropout 0.3, not 0.9"):
        main([*arguments, "--", "--dropout", "0.9"])
    ended(0)
    main(arguments)
    assert "train: done already" in capsys.readouterr().out
    record = json.loads((output / "stages" / "train.json").read_text(encoding="utf-8"))
    assert {record[x] for x in ("begun", "seconds", "memory", "environment")} == {None}
    assert any("; torchrun --nnodes 2" in line for line in record["commands"])
    report([str(output), "--output", str(tmp_path / "report.html")])
    (output / "stages" / "train.json").unlink()
    main(arguments)
    assert "train has not ended; start it" in capsys.readouterr().out


def test_what_an_earlier_training_left_ends_no_other(prepared, tmp_path, capsys):
    arguments, output = prepared("--gpus", "1", "--nodes", "2"), tmp_path / "run"
    (output / "training-ended").touch()
    main(arguments)
    (output / "checkpoints").mkdir()
    (output / "checkpoints" / "checkpoint1.pt").touch()
    main(arguments)
    assert "train: done already" not in capsys.readouterr().out
    (output / "training-ended").touch()
    with pytest.raises(SystemExit, match="other machines have ended the training: give the stage"):
        main(["multi30k", "average", *arguments[2:]])


def test_what_several_machines_ran_is_what_was_printed(prepared, tmp_path, monkeypatch):
    """Not what a machine with a GPU would print later."""
    arguments, output = prepared("--gpus", "1", "--nodes", "2"), tmp_path / "run"
    main(arguments)
    (output / "checkpoints").mkdir()
    (output / "checkpoints" / "checkpoint1.pt").touch()
    (output / "training-ended").touch()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    main(arguments)
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert results["precision"] == "float16"
    assert all("--bf16" not in line for line in results["stages"]["train"]["commands"])


def test_a_training_that_has_a_checkpoint_needs_its_data_and_options(prepared, tmp_path):
    arguments, output = prepared(), tmp_path / "run"
    (output / "checkpoints").mkdir()
    (output / "checkpoints" / "checkpoint1.pt").touch()
    (tmp_path / "dict.en.txt").rename(tmp_path / "moved")
    with pytest.raises(SystemExit, match="bin has no dictionary: prepare the data again: convattn"):
        main(arguments)
    (tmp_path / "moved").rename(tmp_path / "dict.en.txt")
    directory = os.path.relpath(ROOT, output)
    begun = {"settings": [{"--dropout": "0.9"}], "directory": directory, "digests": {}}
    write_json(begun, output / "stages" / "train.begun")
    with pytest.raises(SystemExit, match="was run with other options .--dropout 0.9, not 0.3"):
        main(arguments)


def test_a_preparation_that_wrote_nothing_may_have_another_source(tmp_path):
    output, data = tmp_path / "run", tmp_path / "data"
    arguments = ["multi30k", "prepare", "--output", str(output), "--data", str(data), "--source"]
    for source in ("a", "b"):
        (tmp_path / source).mkdir()
        with pytest.raises(SystemExit, match=f"no train.en in .*{tmp_path / source}"):
            main([*arguments, str(tmp_path / source)])
    data.mkdir()
    with pytest.raises(SystemExit, match="was run with other options"):
        main([*arguments, str(tmp_path / "a")])


def test_the_copy_that_was_interrupted_is_made_again(tmp_path):
    """From the training's newest checkpoint, whatever its name; one that is whole stays."""
    names = ("checkpoint2.pt", "checkpoint_1_30.pt", "checkpoint_best.pt")
    for done, name in enumerate((*names, "average.pt")):
        state = {"model": {}, "optimizer_history": [{"num_updates": done}]}
        write_checkpoint(state, tmp_path / name)
    last, older, newest = (tmp_path / name for name in ("checkpoint_last.pt", *names[1:]))
    for left, expected in ((newest.read_bytes()[:-100], newest), (older.read_bytes(), older)):
        last.write_bytes(left)
        restore_last(tmp_path)
        assert last.read_bytes() == expected.read_bytes()
    last.write_bytes(b"PK")
    for name in names:
        (tmp_path / name).unlink()
    restore_last(tmp_path)
    assert not last.exists()


def test_checkpoints_of_the_same_name_have_folders_of_their_own(trained, tmp_path, capsys):
    folders = []
    for name, bias in (("a", 0.0), ("b", 1.0), ("c", 0.0)):
        model = tmp_path / name / "model.pt"
        model.parent.mkdir()
        state = torch.load(trained)
        state["model"]["bias"] = torch.tensor([bias])
        torch.save(state, model)
        main(["wmt16_en_de", "--checkpoint", str(model), "--data", str(tmp_path), "--dry-run"])
        printed = capsys.readouterr().out
        assert f"--path {model} " in printed and "cli.py average" not in printed
        folders += re.findall(r"mkdir -p (runs/wmt16_en_de-model-[0-9a-f]{8})\n", printed)
    assert len(folders) == 3 and len(set(folders)) == 2 and folders[0] == folders[2]


@pytest.mark.parametrize("given", [".", "../here"])
def test_glue_lies_beside_the_working_directory(given, tmp_path, capsys, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    state = {"model": {}, "cfg": {"task": {"_name": "masked_lm"}, "model": {"_name": "roberta"}}}
    write_checkpoint(state, here / "model.pt")
    monkeypatch.chdir(here)
    main(["albert_base", "--checkpoint", "model.pt", "--data", given, "--dry-run"])
    (folder,) = {*re.findall(r"--data (\S+)/bin ", capsys.readouterr().out)}
    assert Path(folder).resolve() == tmp_path / "here_glue"
