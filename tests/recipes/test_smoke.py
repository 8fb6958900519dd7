"""Recipes from a release to scores, small: every command of every stage is run."""

import html
import json
import os
import re
import resource
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

IN_TWO_PARTS = ("wikitext103", "attention")
CI = [("wmt16_en_de", "dynamic")]  # of all that -m slow runs, what .ci/run has


def marked(recipe: str, mixer: str):
    ci = [pytest.mark.ci] if (recipe, mixer) in CI else []
    return pytest.param(recipe, mixer, marks=[pytest.mark.slow, *ci])


GRID = [marked(recipe, mixer) for recipe in catalogue.RECIPES for mixer in ARCHITECTURE_NAMES]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def smoke(capsys, *arguments: object) -> str:
    main(["--smoke", *map(str, arguments)])
    return capsys.readouterr().out


def seconds_of_commands() -> float:
    """Of computing, with one thread, which other processes make longer by little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def require_modules(recipe: str) -> None:
    """Skip the test where one that the recipe needs is not installed."""
    for module in {*chain.from_iterable(catalogue.RECIPES[recipe].needs.values())}:
        pytest.importorskip(module)


@pytest.mark.parametrize(("recipe", "mixer"), GRID)
def test_from_the_release_to_the_score(capsys, tmp_path, recipe, mixer):
    require_modules(recipe)
    output = tmp_path / "run"
    start = seconds_of_commands()
    printed = smoke(capsys, recipe, "--mixer", mixer, "--output", output)
    assert seconds_of_commands() - start < 120
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert (results["mixer"], results["smoke"], results["seed"]) == (mixer, True, 1)
    run = {name for name in STAGES if (output / "stages" / f"{name}.json").is_file()}
    assert set(results["stages"]) == run >= {"prepare", "train"}
    assert results["scores"] and results["data"]
    for score in results["scores"]:
        assert score["signature"] and f"{score['name']}: {score['score']:.2f}" in printed
    assert printed.endswith("its scores mean nothing)\n")
    page = tmp_path / "report.html"
    report([str(output), "--output", str(page)])
    table = capsys.readouterr().out
    text = html.unescape(page.read_text(encoding="utf-8"))
    for score in results["scores"]:
        assert f"{score['score']:.2f}" in table and score["signature"] in table
        assert score["name"] in text and score["signature"] in text
    assert text.count("<figure>") == 1 and results["stages"]["train"]["commands"][0] in text
    generated = (output / "generated.test.txt").is_file()
    assert ("Sample outputs" in text) == generated == (text.count("of the test set") == 5)


@pytest.mark.slow
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
    score = tmp_path / "run" / "scores.test.txt"
    score.write_text("Evaluated 9 tokens\nLoss (base 2): nan, Perplexity: nan\n")
    with pytest.raises(SystemExit, match="scores.test.txt: the loss is nan; train anew"):
        smoke(capsys, *arguments)
    score.write_text("Evaluated 9 tokens\nLoss (base 2): 7.1700, Perplexity: 144.05\n")
    assert "test perplexity: 144.05 " in smoke(capsys, *arguments)
    score.write_text("no room\n")
    with pytest.raises(SystemExit, match="scores.test.txt, the log of .* remove .*/score.json$"):
        smoke(capsys, *arguments)


@pytest.mark.slow
def test_a_run_that_was_interrupted_continues(tmp_path):
    require_modules("multi30k")
    output = tmp_path / "run"
    command = [sys.executable, "-m", "fairseq_convattn.recipes", "multi30k", "--smoke"]
    command += ["--output", str(output), "--", "--max-update", "60", "--max-epoch", "30"]
    where = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    begun = output / "checkpoints" / "checkpoint3.pt"
    with subprocess.Popen(command, **where, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while process.poll() is None and not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert {x.name for x in (output / "stages").iterdir()} == {"prepare.json", "train.begun"}
    run = subprocess.run(command, **where, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    log = (output / "logs" / "train.log").read_text(encoding="utf-8")
    assert re.search(r"Loaded checkpoint \S+checkpoint_last.pt \(epoch \d+ @ [1-9]", log)
    state = torch.load(output / "checkpoints" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 60
    assert "prepare: done already\n" in run.stdout and "attention 41.02" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "corpus", "first"),
    [
        ("iwslt14_de_en_low", "iwslt14", "test BLEU"),
        ("wikitext2", "wikitext-2", "test perplexity"),
        ("samsum", "samsum", "test rouge1"),
        ("multi30k", "multi30k", "test_2016_flickr BLEU"),
    ],
)
def test_small_corpora_are_prepared_from_local_copies(
    shared, capsys, tmp_path, recipe, corpus, first
):
    require_modules(recipe)
    output = tmp_path / "run"
    smoke(capsys, recipe, "--source", shared / "data" / corpus, "--output", output)
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert results["scores"][0]["name"] == first
    assert len({score["signature"] for score in results["scores"]}) == 2


def test_a_source_that_lacks_a_file_is_refused(tmp_path):
    (tmp_path / "source").mkdir()
    arguments = ["multi30k", "--smoke", "--source", str(tmp_path / "source")]
    with pytest.raises(SystemExit, match=r"error: no tok/train.en in .*source \(log: "):
        main([*arguments, "--output", str(tmp_path / "run")])
    assert not Path(tmp_path / "run" / "release").exists()
