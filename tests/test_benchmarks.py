import csv
import subprocess
import sys

import pytest
from conftest import ROOT, train

BENCHMARKS = ROOT / "benchmarks"
LONG_INPUTS = (sys.executable, str(BENCHMARKS / "long_inputs.py"))


@pytest.mark.slow
def test_long_inputs(tmp_path):
    figures = tmp_path / "figures.csv"
    models = ("dynamic", "transformer_lm", "lightconv_lm")
    options = ("--tasks", "score", "--models", ",".join(models), "--tokens", "64,128")
    run = subprocess.run(
        [*LONG_INPUTS, *options, "--threads", "1", "--csv", str(figures)],
        capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    assert "fairseq's transformer_lm" in run.stdout
    with open(figures, newline="") as file:
        rows = list(csv.DictReader(file))
    measured = [(row["model"], row["tokens"]) for row in rows]
    assert measured == [(model, tokens) for model in models for tokens in ("64", "128")]
    assert all(float(row["milliseconds_per_token"]) > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.ci
def test_short_convolutions(tmp_path):
    figures = tmp_path / "figures.csv"
    options = "--tokens 8 --batch 1 --repetitions 2 --threads 1 --csv"
    command = (sys.executable, str(BENCHMARKS / "short_convolutions.py"), *options.split())
    subprocess.run([*command, str(figures)], capture_output=True, check=True)
    with open(figures, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({(row["part"], row["pass"], row["kind"]) for row in rows}) == len(rows) == 20
    assert all(float(row["ms"]) >= 0 for row in rows)


def test_bad_options_are_refused_before_any_measurement(tmp_path):
    for flag, value, message in (
        ("--csv", str(tmp_path / "no" / "file.csv"), "has no folder"),
        ("--plot", str(tmp_path), "is there already"),
        ("--tokens", "1", "too few"),
        ("--models", "dynamics", "is none of dynamic"),
    ):
        run = subprocess.run([*LONG_INPUTS, flag, value], capture_output=True, text=True)
        assert run.returncode == 2 and message in run.stderr and not run.stdout


@pytest.mark.slow
def test_decoding(data, tmp_path):
    run = tmp_path / "run"
    train(data, run / "checkpoints", "--arch", "dynamic_conv_tiny", "--max-update", "1")
    (run / "checkpoints" / "checkpoint_last.pt").rename(run / "checkpoints" / "average.pt")
    decoding = (sys.executable, str(BENCHMARKS / "decoding.py"), str(data))
    figures = tmp_path / "figures.csv"
    options = ("--repetitions", "1", "--threads", "1", "--csv", str(figures))
    done = subprocess.run([*decoding, str(run), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(figures, newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["checkpoint"] == str(run / "checkpoints" / "average.pt")
    assert float(row["sentences_per_second"]) > 0 and row["x_first"] == "1.0"
    done = subprocess.run([*decoding, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no such file" in done.stderr


@pytest.mark.slow
def test_end_to_end(tmp_path):
    figures, plot = tmp_path / "figures.csv", tmp_path / "figures.png"
    options = "--tokens 16 --batch-tokens 32 --models dynamic,transformer --updates 2 "
    options += "--repetitions 1 --sentences 2 --threads 1"
    command = (sys.executable, str(BENCHMARKS / "end_to_end.py"), *options.split())
    run = subprocess.run(
        [*command, "--csv", str(figures), "--plot", str(plot)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    with open(figures, newline="") as file:
        rows = list(csv.DictReader(file))
    cases = [("lm", "16"), ("translation", "27"), ("translation", "16"), ("generate", "27")]
    assert [(row["task"], row["tokens"]) for row in rows[::2]] == cases
    assert all(float(row["tokens_per_second"]) > 0 for row in rows) and plot.stat().st_size
