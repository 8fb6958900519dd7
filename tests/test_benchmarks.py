import csv
import subprocess
import sys

from conftest import ROOT

LONG_INPUTS = (sys.executable, str(ROOT / "benchmarks" / "long_inputs.py"))


def test_long_inputs(tmp_path):
    figures = tmp_path / "figures.csv"
    options = ("--tasks", "score", "--models", "dynamic,transformer_lm", "--tokens", "64,128")
    run = subprocess.run(
        [*LONG_INPUTS, *options, "--threads", "1", "--csv", str(figures)],
        capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    assert "fairseq's transformer_lm" in run.stdout
    with open(figures, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["tokens"]) for row in rows] == [
        *(("dynamic", "64"), ("dynamic", "128")),
        *(("transformer_lm", "64"), ("transformer_lm", "128")),
    ]
    assert all(float(row["milliseconds_per_token"]) > 0 for row in rows)


def test_bad_options_are_refused_before_any_measurement(tmp_path):
    for flag, value, message in (
        ("--csv", str(tmp_path / "no" / "file.csv"), "has no folder"),
        ("--plot", str(tmp_path), "is there already"),
        ("--tokens", "1", "too few"),
        ("--models", "dynamics", "is none of dynamic"),
    ):
        run = subprocess.run([*LONG_INPUTS, flag, value], capture_output=True, text=True)
        assert run.returncode == 2 and message in run.stderr and not run.stdout
