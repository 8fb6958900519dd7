"""Recipes from a release to scores, small: every command of every stage is run."""

import gzip
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from fairseq_convattn.architectures.presets import ARCHITECTURE_NAMES
from fairseq_convattn.recipes import catalogue
from fairseq_convattn.recipes.__main__ import main
from fairseq_convattn.recipes.recipe import STAGES
from fairseq_convattn.report.__main__ import main as report

# every kind of recipe and every mixer is among those that .ci/run has
QUICK = [("wmt16_en_de", "dynamic")]
IN_TWO_PARTS = ("wikitext103", "attention")
CI = [
    ("multi30k", "dynamic"),
    ("iwslt14_de_en", "lightweight"),
    ("cnn_dm", "tisa"),
    ("bert_small", "composite"),
]


def marked(recipe: str, mixer: str):
    if (recipe, mixer) in QUICK:
        return pytest.param(recipe, mixer)
    ci = [pytest.mark.ci] if (recipe, mixer) in CI else []
    return pytest.param(recipe, mixer, marks=[pytest.mark.slow, *ci])


GRID = [marked(recipe, mixer) for recipe in catalogue.names() for mixer in ARCHITECTURE_NAMES]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def smoke(capsys, *arguments: object) -> str:
    main(["--smoke", *map(str, arguments)])
    return capsys.readouterr().out


def test_all_mixers_and_all_kinds_are_in_what_is_always_run():
    always = [*QUICK, IN_TWO_PARTS, *CI]
    assert {mixer for _, mixer in always} == set(ARCHITECTURE_NAMES)
    kinds = {type(catalogue.recipe(name)) for name in catalogue.names()}
    assert {type(catalogue.recipe(name)) for name, _ in always} == kinds


@pytest.mark.parametrize(("recipe", "mixer"), GRID)
def test_from_the_release_to_the_score(capsys, tmp_path, recipe, mixer):
    for module in {*chain.from_iterable(catalogue.recipe(recipe).needs.values())}:
        pytest.importorskip(module)
    output = tmp_path / "run"
    start = time.monotonic()
    printed = smoke(capsys, recipe, "--mixer", mixer, "--output", output)
    assert time.monotonic() - start < 120
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert (results["mixer"], results["smoke"], results["seed"]) == (mixer, True, 1)
    run = {name for name in STAGES if (output / "stages" / f"{name}.json").is_file()}
    assert set(results["stages"]) == run >= {"prepare", "train"}
    assert results["scores"] and results["data"]
    for score in results["scores"]:
        assert score["signature"] and f"{score['name']}: {score['score']:.2f}" in printed
    published = "published: no figure known|published, .*: (lightweight|dynamic|attention) "
    assert re.search(published, printed)
    assert printed.endswith("its scores mean nothing)\n")
    assert "Model" not in printed
    page = tmp_path / "report.html"
    report([str(output), "--output", str(page)])
    table = capsys.readouterr().out
    text = html.unescape(page.read_text(encoding="utf-8"))
    for score in results["scores"]:
        assert f"{score['score']:.2f}" in table and score["signature"] in table
        assert score["name"] in text and score["signature"] in text
    assert text.count('class="line c0"') == 3 and results["stages"]["train"]["commands"][0] in text
    generated = (output / "generated.test.txt").is_file()
    assert ("Sample outputs" in text) == generated == (text.count("of the test set") == 5)
    assert "not finished" not in table and "GiB, RAM" in table


def test_what_is_done_is_not_done_again_and_nothing_is_overwritten(capsys, tmp_path):
    recipe, mixer = IN_TWO_PARTS
    arguments = (recipe, "--mixer", mixer, "--output", tmp_path / "run")
    smoke(capsys, *arguments, "prepare", "train")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.pt")}
    printed = smoke(capsys, *arguments)
    assert "prepare: done already\ntrain: done already" in printed
    assert "test perplexity: " in printed and "attention 18.70" in printed
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.pt")} == before
    with pytest.raises(SystemExit, match="the stage train in .* other options .--seed 1, not 2"):
        main(["--smoke", *map(str, arguments), "--seed", "2"])


@pytest.mark.slow
@pytest.mark.ci
def test_training_that_was_interrupted_continues(tmp_path):
    output = tmp_path / "run"
    command = [sys.executable, "-m", "fairseq_convattn.recipes", "wmt16_en_de", "--smoke"]
    command += ["--output", str(output), "--", "--max-update", "60", "--max-epoch", "30"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (output / "checkpoints" / "checkpoint3.pt").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert {path.name for path in (output / "stages").iterdir()} == {"prepare.json", "train.begun"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    log = (output / "logs" / "train.log").read_text(encoding="utf-8")
    assert re.search(r"Loaded checkpoint \S+checkpoint_last.pt \(epoch \d+ @ [1-9]", log)
    state = torch.load(output / "checkpoints" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 60


def test_a_local_copy_of_the_corpus(shared, capsys, tmp_path):
    source = shared / "data" / "multi30k"
    smoke(capsys, "multi30k", "prepare", "--source", source, "--output", tmp_path / "run")
    text = (tmp_path / "run" / "data" / "text" / "train.de").read_text(encoding="utf-8")
    with gzip.open(source / "tok" / "train.de.gz", "rt", encoding="utf-8") as file:
        assert text.splitlines() == [file.readline().rstrip("\n") for _ in range(300)]


def test_a_source_that_lacks_a_file_is_refused(tmp_path):
    (tmp_path / "source").mkdir()
    arguments = ["multi30k", "--smoke", "--source", str(tmp_path / "source")]
    with pytest.raises(SystemExit, match=r"error: no tok/train.en in .*source \(log: "):
        main([*arguments, "--output", str(tmp_path / "run")])
    assert not Path(tmp_path / "run" / "release").exists()
