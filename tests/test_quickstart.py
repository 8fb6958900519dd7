import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT


def quickstart(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "quickstart.sh"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        check=False,
    )


def tour(output: Path, *arguments: str) -> str:
    """What a finished tour has printed."""
    run = quickstart("--output", output, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def assert_commands(output: Path, *names: str) -> None:
    commands = (output / "commands.sh").read_text(encoding="utf-8")
    for name in names:
        assert f"{name} " in commands


@pytest.mark.slow
@pytest.mark.ci
def test_learns_its_task(tmp_path):
    output = tmp_path / "new"
    bleu = re.search(r"BLEU\|(\S+) = (\d+\.\d)", tour(output))
    assert "version:" in bleu[1] and float(bleu[2]) >= 90
    assert_commands(output, "fairseq-preprocess", "fairseq-train", "fairseq-generate", "sacrebleu")
    assert len((output / "translated.txt").read_text().splitlines()) == 200


@pytest.mark.slow
def test_learns_to_summarize(tmp_path):
    output = tmp_path / "new"
    model, lead = re.findall(r"ROUGE-L F1 = (\d+\.\d+)", tour(output, "--task", "summarization"))
    assert float(model) >= 90 and float(lead) < 40
    assert_commands(output, "fairseq-train", "fairseq-generate", "python scripts/score.py")
    assert len((output / "summaries.txt").read_text().splitlines()) == 200


@pytest.mark.slow
def test_learns_the_language(tmp_path):
    output = tmp_path / "new"
    printed = tour(output, "--task", "lm")
    model = float(re.search(r"model +(\d+\.\d+)", printed)[1])
    best = float(re.search(r"best possible +(\d+\.\d+)", printed)[1])
    known = json.loads((output / "text" / "entropy.json").read_text())["test"]
    assert best == pytest.approx(known["perplexity"], abs=0.01)
    assert 1 < model / best < 1.05
    assert_commands(output, "fairseq-preprocess", "fairseq-train", "fairseq-eval-lm")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--task", "parsing"), "--task needs translation, summarization or lm, not parsing"),
        (("--task",), "--task needs translation, summarization or lm"),
        (("--task", "lm", "--output", ROOT), f"{ROOT} is not empty"),
    ],
)
def test_bad_options_are_refused_before_anything_is_set_up(arguments, message):
    run = quickstart(*arguments)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith(f"error: {message}") and len(run.stderr.splitlines()) == 1
