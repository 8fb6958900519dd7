"""The commands of benchmarks/: they measure what they are asked for, or refuse at once."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, train

from fairseq_convattn.ops.native import is_built


def run(name: str, *options: str) -> subprocess.CompletedProcess:
    """benchmarks/NAME.py; an option may be several words."""
    words = [word for option in options for word in option.split()]
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / f"{name}.py", *words],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip


def measured(folder: Path, name: str, *options: str) -> tuple[list[dict[str, str]], str]:
    """The rows that a benchmark writes, and what it prints."""
    figures = folder / "figures.csv"
    done = run(name, *options, "--threads 1", f"--csv {figures}")
    assert done.returncode == 0, done.stderr
    with open(figures, newline="") as file:
        return list(csv.DictReader(file)), done.stdout


@pytest.mark.slow
def test_long_inputs(tmp_path):
    models = ("dynamic", "transformer_lm", "lightconv_lm")
    options = ("--tasks score --tokens 64,128", f"--models {','.join(models)}")
    rows, printed = measured(tmp_path, "long_inputs", *options)
    assert "fairseq's transformer_lm" in printed
    cases = [(row["model"], row["tokens"]) for row in rows]
    assert cases == [(model, tokens) for model in models for tokens in ("64", "128")]
    assert all(float(row["milliseconds_per_token"]) > 0 for row in rows)


@pytest.mark.slow
def test_host_time(tmp_path):
    sizes = "--tokens 8 --batch-tokens 16 --repetitions 2"
    rows, _ = measured(tmp_path, "host_time", sizes, "--models dynamic,transformer")
    cases = [(row["task"], row["model"]) for row in rows]
    assert cases == [
        (task, m) for task in ("lm", "translation") for m in ("dynamic", "transformer")
    ]
    assert all(float(row["update_ms"]) > 0 and not row["host_ms"] for row in rows)


@pytest.mark.slow
def test_short_convolutions(tmp_path):
    options = "--tokens 8 --batch 1 --repetitions 2"
    rows, _ = measured(tmp_path, "short_convolutions", options)
    assert len({(row["part"], row["pass"], row["kind"]) for row in rows}) == len(rows) == 32
    assert all(float(row["ms"]) >= 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["static", "headwise", "low_rank"])
def test_block_sizes(operation, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="needs Triton: pip install triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    sizes = "--device cpu --dtype float32 --tokens 3 --all-tokens 3 --channels 16 --heads 2"
    figures = tmp_path / "figures.csv"
    options = f"--operations {operation} --repetitions 2 --csv {figures}"
    done = run("block_sizes", sizes, options)
    assert done.returncode == 0, done.stderr
    with open(figures, newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["operation"] for row in rows} == {operation}
    by_pass = {(row["taps"], row["pass"]): [] for row in rows}
    for row in rows:
        by_pass[row["taps"], row["pass"]].append(row["blocks"])
    for blocks in by_pass.values():
        assert blocks[0] == "in use" and len(set(blocks)) == len(blocks) > 3


@pytest.mark.slow
def test_dropout(tmp_path):
    rows, _ = measured(tmp_path, "dropout", "--tokens 8 --sentences 2 --repetitions 2")
    assert len({(row["part"], row["dropout"]) for row in rows}) == len(rows) == 6


@pytest.mark.slow
def test_compiled_layers(tmp_path):
    options = "--layers 1 --width 64 --tokens 8 --repetitions 2"
    rows, _ = measured(tmp_path, "compiled_layers", options, "--mixers dynamic")
    (row,) = rows
    assert row["mixer"] == "dynamic"
    ratio = float(row["compiled_ms"]) / float(row["ms"])
    assert ratio == pytest.approx(float(row["ratio"])) and float(row["compiling_s"]) > 0


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("long_inputs", "--csv /no/folder/file.csv", "has no folder"),
        ("long_inputs", "--models dynamics", "is none of dynamic"),
        ("composite_attention", "--heads 0", "--heads: must be a whole number of at least 1"),
    ],
)
def test_bad_options_are_refused_before_any_measurement(
    benchmark_of, monkeypatch, capsys, name, options, message
):
    monkeypatch.setattr(sys, "argv", [name, *options.split()])
    with pytest.raises(SystemExit) as refused:
        benchmark_of(name).main()
    found = capsys.readouterr()
    assert refused.value.code == 2 and message in found.err and not found.out


@pytest.mark.slow
def test_decoding(data, tmp_path):
    checkpoints = tmp_path / "run" / "checkpoints"
    train(data, checkpoints, "--arch", "dynamic_conv_tiny", "--max-update", "1")
    average = (checkpoints / "checkpoint_last.pt").rename(checkpoints / "average.pt")
    command = f"{data} {tmp_path / 'run'} --repetitions 1"
    ((row,), _) = measured(tmp_path, "decoding", command)
    assert row["checkpoint"] == str(average)
    assert float(row["sentences_per_second"]) > 0 and row["x_first"] == "1.0"
    refused = run("decoding", str(data), str(tmp_path))
    assert refused.returncode == 2 and "there is no such file" in refused.stderr


@pytest.mark.slow
def test_end_to_end(tmp_path):
    options = "--tokens 16 --batch-tokens 32 --models dynamic,transformer --updates 2"
    rows, _ = measured(tmp_path, "end_to_end", options, "--repetitions 1 --sentences 2")
    cases = [("lm", "16"), ("translation", "27"), ("translation", "16"), ("generate", "27")]
    assert [(row["task"], row["tokens"]) for row in rows[::2]] == cases
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)


@pytest.mark.slow
def test_composite_attention(tmp_path):
    options = "--passes training --terms content,fixed --tokens 12 --causal"
    sizes = "--batch 2 --heads 2 --head-dim 4 --repetitions 2"
    rows, printed = measured(tmp_path, "composite_attention", options, sizes)
    assert "--tokens 12" in printed and torch.__version__ in printed
    names = ["sdpa", "sdpa, is_causal", "content,fixed", "published content,fixed"]
    assert [row["implementation"] for row in rows] == names
    sdpa, _, ours, published = (float(row["milliseconds"]) for row in rows)
    assert float(rows[2]["times_first"]) == pytest.approx(ours / sdpa)
    assert float(rows[2]["published_times"]) == pytest.approx(published / ours)


@pytest.mark.slow
@pytest.mark.skipif(not is_built(), reason="the kernels were not compiled: no C compiler")
def test_convolutions(tmp_path):
    options = "--passes training --convolutions dynamic --kernel-sizes 3 --tokens 4,8"
    sizes = "--all-tokens 16 --channels 8 --heads 2 --repetitions 2"
    names = "--implementations native,copy,product"
    rows, printed = measured(tmp_path, "conv_ops", options, sizes, names)
    assert "native kernels:" in printed and len(rows) == 2 * 3  # lengths, implementations
    assert all(float(row["milliseconds"]) > 0 for row in rows)
