import json
import os
import re
import shutil
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


def tour(output: Path, task: str, *commands: str) -> str:
    """What a finished tour has printed; it has run the ``commands``, among others."""
    run = quickstart("--output", output, "--task", task)
    assert run.returncode == 0, run.stdout + run.stderr
    noted = (output / "commands.sh").read_text(encoding="utf-8")
    assert all(f"{command} " in noted for command in commands)
    return run.stdout


@pytest.mark.slow
def test_learns_its_task(tmp_path):
    output = tmp_path / "new"
    printed = tour(output, "translation", "fairseq-preprocess", "fairseq-generate", "sacrebleu")
    bleu = re.search(r"BLEU\|(\S+) = (\d+\.\d)", printed)
    assert "version:" in bleu[1] and float(bleu[2]) >= 90
    assert len((output / "translated.txt").read_text().splitlines()) == 200


@pytest.mark.slow
def test_learns_to_summarize(tmp_path):
    output = tmp_path / "new"
    printed = tour(output, "summarization", "fairseq-train", "python scripts/cli.py score")
    model, lead = re.findall(r"ROUGE-L F1 = (\d+\.\d+)", printed)
    assert float(model) >= 90 and float(lead) < 40
    assert len((output / "summaries.txt").read_text().splitlines()) == 200


@pytest.mark.slow
def test_learns_the_language(tmp_path):
    output = tmp_path / "new"
    printed = tour(output, "lm", "fairseq-preprocess", "fairseq-train", "fairseq-eval-lm")
    model = float(re.search(r"model +(\d+\.\d+)", printed)[1])
    best = float(re.search(r"best possible +(\d+\.\d+)", printed)[1])
    known = json.loads((output / "text" / "entropy.json").read_text())["test"]
    assert best == pytest.approx(known["perplexity"], abs=0.01)
    assert 1 < model / best < 1.05


STAND_INS = {
    "python": """
        case "$1" in
          *generate_corpus.py)
            mkdir "$2"
            for file in {train,valid,test}.{src,tgt}; do printf 's1\\ns2\\n' > "$2/$file"; done ;;
          *) cat ;;
        esac""",
    "fairseq-preprocess": "echo preprocessed",
    "fairseq-train": """
        echo "epoch 001 | valid on 'valid' subset | loss 5 | ppl 12.5 | wps 9 | num_updates 87"
        [ -z "$FAILS" ] || { echo 'out of memory' >&2; exit 1; }""",
    "fairseq-generate": "printf 'D-1\\t-0.5\\tb\\nD-0\\t-0.5\\ta\\n'",
    "sacrebleu": "echo 'BLEU|version:2 = 95.0 100/90'",
}


@pytest.fixture
def stand_ins(tmp_path) -> tuple[Path, dict[str, str]]:
    """A checkout that is set up, and the variables for stand-ins of all that takes long."""
    root, programs = tmp_path / "checkout", tmp_path / "bin"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    (root / "scripts" / "setup.sh").write_text("")
    programs.mkdir()
    for name, text in STAND_INS.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(0o755)
    return root, {"PATH": f"{programs}:/usr/bin:/bin", "FAILS": ""}


def test_a_tour_shows_its_commands_results_and_time(stand_ins):
    root, variables = stand_ins
    for folder in ("quickstart/translation", "quickstart/translation-2"):
        run = subprocess.run(
            ["bash", root / "scripts" / "quickstart.sh"],
            env=variables, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "  epoch  1,  87 updates: validation perplexity 12.5\n" in run.stdout
        assert "BLEU|version:2 = 95.0" in run.stdout
        last = run.stdout.splitlines()[-1]
        assert re.fullmatch(rf"done in 0 min \d+ s in all; .* are in {folder}", last)
        assert (root / folder / "translated.txt").read_text() == "a\nb\n"
        assert "\nfairseq-train quickstart/" in (root / folder / "commands.sh").read_text()
        assert "source     s1\nsystem     a\nreference  s1\n\nsource     s2\n" in run.stdout


def test_a_step_that_fails_ends_the_tour_with_its_log(stand_ins):
    root, variables = stand_ins
    run = subprocess.run(
        ["bash", root / "scripts" / "quickstart.sh"],
        env={**variables, "FAILS": "yes"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    *_, before, last = run.stderr.splitlines()
    assert run.returncode == 1 and before == "out of memory"
    log = "quickstart/translation/train.log"
    assert last == f"error: the step 'train' failed; its log is {log}"


def test_what_takes_long_says_that_it_is_alive(tmp_path):
    log = tmp_path / "log"
    log.write_text("[3/7] c++ -MMD -O3 -c /tmp/build/libbleu.cpp -o x\nwarning: unused\n")
    command = f"sleep() {{ command sleep 0.1; }}; source {ROOT}/scripts/progress.sh;"
    command += f"with_progress {log} bash -c 'sleep 1; exit 3'"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert run.returncode == 3
    assert re.match(r"  0:0\d  compiling libbleu.cpp \[3/7\]\n", run.stdout)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--task", "parsing"), "--task needs translation, summarization or lm, not parsing"),
        (("--task",), "--task needs a value"),
        (("--task", "lm", "--output", ROOT), f"{ROOT} is not empty"),
        (("--output", "/new/12:30"), "--output /new/12:30: fairseq splits paths at"),
    ],
)
def test_bad_options_are_refused_before_anything_is_set_up(arguments, message):
    run = quickstart(*arguments)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith(f"error: {message}") and len(run.stderr.splitlines()) == 1
