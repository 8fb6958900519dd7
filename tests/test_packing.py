"""convattn pack: a run of a recipe as one folder, which Python and fairseq load."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import small_models
import torch
from conftest import eval_lm, generate
from small_models import PIECES, SOURCES, load

from fairseq_convattn.architectures import (
    ConvAttnLanguageModel,
    ConvAttnMaskedLanguageModel,
    ConvAttnModel,
)
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.report import ReportError, pack

folder = small_models.folder
here = small_models.here
RESULTS = {
    "command": "python -m fairseq_convattn.recipes multi30k --mixer dynamic --data /home/me/data",
    "environment": {"versions": {"torch": "2.13.0", "fairseq_convattn": "0.1.0"}, "git": None},
    **{"title": "Multi30k", "mixer": "dynamic", "architecture": "dynamic_conv_tiny", "seed": 1},
    **{"paper": "Wu et al. 2021", "origin": "its code", "reading": "its length", "smoke": False},
}
SCORE = {"name": "BLEU", "score": 42.0, "signature": "tok:none"}
SCORE |= {"published": {}, "published_in": "a paper"}
PARAMETERS = (
    "2026-11-21 00:00:00 | INFO | train | num. shared model params: 9,126 (num. trained: 9)\n"
)


def run_of_a_recipe(here: Path, folder: Path, name: str, **changes) -> Path:
    """With a model of the fixture, and its subwords where the preparation puts them."""
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "train.log").write_text(PARAMETERS)
    task = {"lm": "language_modeling", "mlm": "masked_lm"}.get(name, name)
    (folder / "stages").mkdir()
    (folder / "stages" / "train.json").write_text(json.dumps({"settings": [{"--task": task}]}))
    shutil.copytree(here / "checkpoints" / name, folder / "checkpoints")
    pieces = (here / "data" / name.removeprefix("m")).resolve().parent / "bpe" / "bpe.model"
    pieces.parent.mkdir(exist_ok=True)
    shutil.copyfile(here / "bpe.model", pieces)
    (folder / "results.json").write_text(json.dumps(RESULTS | {"scores": [SCORE]} | changes))
    return folder


@pytest.mark.parametrize(
    "name, model, use",
    [
        ("translation", ConvAttnModel, lambda model: model.translate(SOURCES, max_len_b=9)),
        ("lm", ConvAttnLanguageModel, lambda model: model.sample(SOURCES, max_len_b=9)),
        (
            "mlm",
            ConvAttnMaskedLanguageModel,
            lambda model: model.fill_mask("oak <mask>", topk=1)[0][0],
        ),
    ],
)
def test_a_packed_model_is_one_folder(name, model, use, here, tmp_path, monkeypatch):
    run = trained_with_paths(run_of_a_recipe(here, tmp_path / "run", name))
    (run / "checkpoints" / f"checkpoint_{'best' if name == 'mlm' else 'last'}.pt").unlink()
    long = "elm " * 99
    samples = f"S-0\toak\nH-0\t-1\t{long}\nS-1\t{long}\nH-1\t-1\tash\nS-2\tfir\nH-2\t-1\tpine\n"
    (run / "generated.test.txt").write_text(samples)
    monkeypatch.setattr(sys, "argv", ["pack", str(run), "--output", str(tmp_path / "packed")])
    pack.main()
    card = (tmp_path / "packed" / "README.md").read_text()
    assert "| 42.00 |" in card and "9,126 parameters" in card and "/home/me" not in card
    assert "answers `pine`" in card and long not in card
    state = torch.load(tmp_path / "packed" / "model.pt")
    assert "last_optimizer_state" not in state and state["cfg"]["dataset"]["max_tokens"] == 777
    floats = [w for w in state["model"].values() if w.is_floating_point()]
    assert {w.dtype for w in floats} == {torch.float16}
    assert state["cfg"].get("languages") == (["src", "tgt"] if name == "translation" else None)
    paths = {word for word in re.findall(r"'(/[^']*)", str(state)) if word != "/tmp/plasma"}
    assert not paths and "metrics" not in state["extra_state"]
    assert use(model.from_pretrained(tmp_path / "packed"))
    kept = load(model, name, "lm" if name == "mlm" else None, **PIECES)
    expected = use(kept.half().float())
    shutil.move(tmp_path / "packed", tmp_path / "elsewhere")
    monkeypatch.chdir("/")
    assert use(model.from_pretrained(tmp_path / "elsewhere")) == expected


def trained_with_paths(run: Path) -> Path:
    """The same run, whose training was given files of its machine."""
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        state = torch.load(run / "checkpoints" / name)
        state["cfg"]["checkpoint"]["finetune_from_model"] = "/home/me/first.pt"
        state["cfg"]["common"]["tensorboard_logdir"] = "/home/me/curves"
        state["cfg"]["dataset"]["max_tokens"] = 777
        if "encoder_embed_path" in state["cfg"]["model"]:
            state["cfg"]["model"]["encoder_embed_path"] = "/home/me/vectors.txt"
        torch.save(state, run / "checkpoints" / name)
    return run


def test_fairseqs_commands_take_a_packed_model(here, tmp_path):
    """With the data of the training."""
    for name in ("translation", "lm"):
        run = run_of_a_recipe(here, tmp_path / name, name)
        pack.pack(run, tmp_path / f"packed-{name}")
    found = generate(here / "data" / "translation", tmp_path / "packed-translation" / "model.pt")
    assert found.keys() == set(range(len(SOURCES)))
    blocks = ("--sample-break-mode", "eos")
    packed, before = (
        eval_lm(here / "data" / "lm", model, *blocks)
        for model in (tmp_path / "packed-lm" / "model.pt", "checkpoints/lm/checkpoint_best.pt")
    )
    assert abs(packed - before) < 0.01


def test_a_language_is_no_path_to_a_private_file(here, tmp_path):
    run = trained_with_paths(run_of_a_recipe(here, tmp_path / "run", "translation"))
    (tmp_path / "private").write_text("secret")
    for checkpoint in (run / "checkpoints").iterdir():
        state = torch.load(checkpoint)
        state["cfg"]["task"]["source_lang"] = "/../../../private"
        torch.save(state, checkpoint)
    data = tmp_path / "data"
    shutil.copytree(here / "data" / "translation", data / "bin")
    (data / "bpe" / "codes.").mkdir(parents=True)
    pack.pack(run, tmp_path / "packed", data)
    packed = [file for file in (tmp_path / "packed").iterdir() if file.suffix != ".pt"]
    assert packed and not any("secret" in file.read_text() for file in packed)


@pytest.mark.parametrize("place", ["bin/dict.key.txt", "bpe/codes", "bpe", "bin"])
def test_no_file_is_packed_that_is_elsewhere_than_the_data(here, tmp_path, place):
    run, data, private = tmp_path / "run", tmp_path / "data", tmp_path / "private"
    run = run_of_a_recipe(here, run, "translation")
    shutil.copytree(here / "data" / "translation", data / "bin")
    (data / "bpe").mkdir()
    pack.pack(run, tmp_path / "packed", data)
    link = data / place
    if link.is_dir():
        shutil.copytree(link, private)
        shutil.rmtree(link)
    private.mkdir(exist_ok=True)
    (private / "codes").write_text("secret")
    link.symlink_to(private if "/" not in place else private / "codes")
    for given in (data, *([data / "bin"] if place != "bin" else ())):
        with pytest.raises(ReportError, match="leads to .*give --data the folder"):
            pack.pack(run, tmp_path / "again", given)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/checkpoint_best.pt"])
def test_no_model_is_packed_that_is_elsewhere_than_the_run(here, tmp_path, place):
    run = run_of_a_recipe(here, tmp_path / "run", "translation")
    (run / place).rename(tmp_path / "private")
    (run / place).symlink_to(tmp_path / "private")
    with pytest.raises(FileExistsError, match=f"{place} is a symbolic link"):
        pack.pack(run, tmp_path / "packed")


def test_no_data_are_packed_that_only_the_checkpoint_names(here, tmp_path, monkeypatch):
    run = run_of_a_recipe(here, tmp_path / "run", "translation")
    data = tmp_path / "private" / "bin"
    shutil.copytree(here / "data" / "translation", data)
    trained_with_paths(run)
    for checkpoint in (run / "checkpoints").iterdir():
        state = torch.load(checkpoint)
        state["cfg"]["task"]["data"] = str(data)
        torch.save(state, checkpoint)
    with pytest.raises(ReportError, match=f"its data are in {data}: .*give --data {data}"):
        pack.pack(run, tmp_path / "packed")
    pack.pack(run, tmp_path / "packed", data)
    monkeypatch.chdir(tmp_path)
    pack.pack(run, tmp_path / "nearby")


@pytest.mark.parametrize(
    ("name", "said"),
    [("lm", "the words of its dictionary, split by spaces"), ("translation", "writes subwords")],
)
def test_what_a_model_without_subwords_reads(name, said, here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", name)
    shutil.copytree(here / "data" / name, tmp_path / "data" / "bin")
    pack.pack(run, tmp_path / "packed", tmp_path / "data")
    assert said in (tmp_path / "packed" / "README.md").read_text()


def test_bpe_codes_are_packed_too(here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation", reading="")
    data = tmp_path / "data"
    shutil.copytree(here / "data" / "translation", data / "bin")
    (data / "bpe").mkdir()
    (data / "bpe" / "codes.src").write_text("#version: 0.2\no a\nk</w> x\n")
    pack.pack(run, tmp_path / "packed", data)
    card = (tmp_path / "packed" / "README.md").read_text()
    assert "pip install subword-nmt" in card and "Chosen here" not in card
    model = ConvAttnModel.from_pretrained(tmp_path / "packed")
    assert model.apply_bpe("oak") == "oa@@ k"
    pack.pack(run, tmp_path / "of_bin", data / "bin")  # a recipe's --data may be this
    assert (tmp_path / "of_bin" / "dict.src.txt").is_file()
    with pytest.raises(FileNotFoundError, match="neither .*none nor .*bin has dictionaries"):
        pack.pack(run, tmp_path / "of_none", tmp_path / "none")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"smoke": True}, "is a smoke test"),
        ({"scores": []}, "has no scores yet"),
        ({"origin": ""}, "does not say its origin"),
    ],
)
def test_what_is_no_finished_run_is_not_packed(changes, message, here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation", **changes)
    with pytest.raises(ReportError, match=message):
        pack.pack(run, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_weights_beyond_half_precision_are_not_packed(here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation")
    best = here / "checkpoints" / "translation" / "checkpoint_best.pt"
    state = torch.load(best, weights_only=False)
    state["model"]["encoder.layers.0.fc1.bias"][0] = 1e5
    torch.save({k: v for k, v in state.items() if k != "digest"}, run / "checkpoints" / best.name)
    with pytest.raises(CheckpointError, match="beyond float16.*fc1.bias"):
        pack.pack(run, tmp_path / "packed")


def test_an_averaged_run_is_not_packed_without_the_average(here, tmp_path):
    run = run_of_a_recipe(here, tmp_path / "run", "translation")
    (run / "stages" / "average.json").write_text("{}")
    with pytest.raises(CheckpointError, match="average.pt: there is no such file"):
        pack.pack(run, tmp_path / "packed")
