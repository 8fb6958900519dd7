"""The command of benchmarks/gpu_acceptance.py and what it is made of, without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from argparse import Namespace

import pytest
from conftest import ROOT

BENCHMARKS = ROOT / "benchmarks"
SCRIPT = BENCHMARKS / "gpu_acceptance.py"


@pytest.fixture
def acceptance(benchmark_of):
    return benchmark_of("gpu_acceptance")


def python_step(acceptance, name, code, limit=60, needs=()):
    command = [sys.executable, "-c", code]
    return acceptance.Step(name, name, limit, needs, command, acceptance.rows_of_csv)


def carry_out(acceptance, folder, chosen, seconds=60):
    arguments = Namespace(output=folder, source=None, seconds=seconds, smoke=False)
    report = {"started": "now", "smoke": False, "steps": []}
    acceptance.carry_out(chosen, arguments, report)
    assert json.loads((folder / "acceptance.json").read_text()) == report
    assert (folder / "acceptance.md").read_text() == acceptance.page(report)
    return report["steps"]


def test_a_step_is_killed_at_its_limit_with_its_children_and_keeps_its_rows(acceptance, tmp_path):
    child = f"import time; time.sleep(6); open({str(tmp_path / 'alive')!r}, 'w')"
    code = (
        "import pathlib, subprocess, sys, time\n"
        f"pathlib.Path({str(tmp_path / 'slow.csv')!r}).write_text('a\\n1\\n')\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}]); print('said', flush=True)\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    (record,) = carry_out(acceptance, tmp_path, [python_step(acceptance, "slow", code, limit=3)])
    assert record["status"] == "cut" and record["rows"] == [{"a": "1"}]
    assert 3 <= record["seconds"] < 30 and record["output"] == ["said"]
    time.sleep(max(0.0, 12 - (time.monotonic() - start)))
    assert not (tmp_path / "alive").exists()


def test_what_was_measured_is_written_before_the_next_step_begins(acceptance, tmp_path):
    report = str(tmp_path / "acceptance.json")
    seen = f"import json, sys; sys.exit(len(json.load(open({report!r}))['steps']) - 2)"
    chosen = [
        python_step(acceptance, "wrong", "print('why'); raise SystemExit(2)"),
        python_step(acceptance, "absent", "", needs=("no_such_module",)),
        python_step(acceptance, "seen", seen),
    ]
    failed, skipped, passed = carry_out(acceptance, tmp_path, chosen)
    assert (failed["status"], failed["output"]) == ("failed", ["why"])
    assert (skipped["status"], skipped["reason"]) == ("skipped", "no_such_module is not installed")
    assert passed["status"] == "passed"


def test_nothing_begins_after_the_time_of_the_whole_run(acceptance, tmp_path):
    chosen = [python_step(acceptance, name, "import time; time.sleep(60)") for name in "ab"]
    first, second = carry_out(acceptance, tmp_path, chosen, seconds=2)
    assert first["status"] == "cut" and first["seconds"] < 30
    assert (second["status"], second["reason"]) == ("skipped", "no time was left")


def test_shares_of_what_the_memory_allows(acceptance):
    """(2 C + H K) / 2 C and (5 C + 3 H K) / 2 C copies, with C = 1024, H = 16, K = 31."""
    times = (
        *(("forward", "triton", "1.2421875"), ("forward", "copy", "1.0")),
        *(("training", "triton", "6.453125"), ("training", "copy", "1.0")),
    )
    shape = {"kernel_size": "31", "tokens": "256", "device": "cuda", "memory_MiB": ""}
    rows = [
        {"pass": which, "implementation": name, "milliseconds": took, **shape}
        for which, name, took in times
    ]
    step = {"title": "T", "command": "python x", "status": "passed", "seconds": 1}
    steps = [step | {"name": "convolutions", "rows": rows}]
    page = acceptance.page({"started": "now", "smoke": False, "steps": steps})
    assert "| forward | 31 | 256 | 100% | 70% |\n| training | 31 | 256 | 50% | 60% |" in page


def test_bad_options_are_refused_before_any_step(acceptance, tmp_path, monkeypatch, capsys):
    missing = str(tmp_path / "absent")
    for options, message in (
        (("--only", "speed"), "'speed' is none of facts, tests"),
        (("--source", missing), "there is no folder"),
        (("--output", str(tmp_path)), "is there already"),
    ):
        given = ["gpu_acceptance.py", "--output", str(tmp_path / "new"), *options]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as refused:
            acceptance.main()
        assert refused.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def compiled_rows(file, options):
    script = BENCHMARKS / "compiled_kernels.py"
    run = subprocess.run(
        [sys.executable, script, *options.split(), "--json", file], capture_output=True, text=True
    )
    if run.returncode == 3:
        pytest.skip("this build of Triton compiles for no NVIDIA GPU")
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(file.read_text())


needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs Triton")


@needs_triton
@pytest.mark.slow
def test_composite_attention_spills_nothing(tmp_path):
    rows = compiled_rows(tmp_path / "kernels.json", "--operations attention")
    assert len(rows) == 18
    assert all(row["stack"] == 0 for row in rows)


@needs_triton
@pytest.mark.slow
def test_convolutions_spill_nothing_and_move_128_bits(tmp_path):
    options = "--operations convolution --capabilities 90 --kernel-sizes 3,16,31"
    rows = compiled_rows(tmp_path / "kernels.json", options)
    assert len(rows) == 12
    for row in rows:
        found = row["instructions"]
        assert row["stack"] == 0, row
        assert max(row["microseconds"].values()) <= row["target_microseconds"], row
        assert "128" in found["loads"] and "128" in found["stores"], row
        if row["case"].endswith(" 16"):  # the strides of fewer or odd taps allow no more
            # of 16 by 16 taps a thread has 64 bits, of the logarithms of their sums 32
            assert set(found["loads"]) | set(found["stores"]) <= {"128", "64", "32"}, row


@pytest.mark.slow
@pytest.mark.ci
def test_smoke(tmp_path):
    folder = tmp_path / "accepted"
    run = subprocess.run(
        [sys.executable, SCRIPT, "--smoke", "--output", folder],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    steps = json.loads((folder / "acceptance.json").read_text())["steps"]
    trained = [step for step in steps if step["name"].startswith("multi30k")]
    measured = [step for step in steps if step not in trained]
    assert [step["reason"] for step in trained] == ["no --source"] * 2
    assert len(measured) == 10
    assert all(step["status"] == "passed" and step["rows"] for step in measured)
    page = (folder / "acceptance.md").read_text()
    assert "its figures mean nothing" in page and str(tmp_path) not in page
