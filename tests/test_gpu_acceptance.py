"""The command of benchmarks/gpu_acceptance.py and what it is made of, without a GPU."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

BENCHMARKS = ROOT / "benchmarks"
SCRIPT = BENCHMARKS / "gpu_acceptance.py"


@pytest.fixture
def acceptance(benchmark_of):
    return benchmark_of("gpu_acceptance")


def python_step(acceptance, name, code, limit=60, needs=()):
    command = [sys.executable, "-c", code]
    return acceptance.Step(name, name, limit, needs, command, acceptance.rows_of_csv)


def carry_out(acceptance, folder, chosen, seconds=200):
    arguments = Namespace(output=folder, source=None, seconds=seconds, smoke=False)
    report = {"started": "now", "smoke": False, "steps": []}
    acceptance.carry_out(chosen, arguments, report)
    assert json.loads((folder / "acceptance.json").read_text()) == report
    assert (folder / "acceptance.md").read_text() == acceptance.page(report)
    return report["steps"]


def test_a_step_is_killed_at_its_limit_with_its_children_and_keeps_its_rows(acceptance, tmp_path):
    child = f"import time; time.sleep(5); open({str(tmp_path / 'alive')!r}, 'w')"
    code = (
        "import pathlib, subprocess, sys, time\n"
        f"pathlib.Path({str(tmp_path / 'slow.csv')!r}).write_text('a\\n1\\n')\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}]); print('said', flush=True)\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    step = python_step(acceptance, "slow", code, limit=3)
    (record,) = carry_out(acceptance, tmp_path, [step], seconds=3)
    assert record["status"] == "cut" and record["rows"] == [{"a": "1"}]
    assert 3 <= record["seconds"] < 30 and record["output"] == ["said"]
    time.sleep(max(0.0, 9 - (time.monotonic() - start)))
    assert not (tmp_path / "alive").exists()


def test_tests_that_were_cut_are_counted_so_far(acceptance, tmp_path):
    printed = "bringing up nodes...\n\ns..F [ 50%]\n..E"
    rows = acceptance.rows_of_pytest(tmp_path, printed)
    assert [(row["tests"], row["number"]) for row in rows] == [
        ("passed", "4"), ("failed", "1"), ("errors", "1"), ("skipped", "1")
    ]  # fmt: skip


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


def test_steps_that_do_not_fit_are_skipped_and_the_others_share_the_time(
    acceptance, tmp_path, monkeypatch
):
    given = {}

    def run(step, folder, limit):
        given[step.name] = round(limit)
        return {"status": "passed", "seconds": 0, "rows": []}

    monkeypatch.setattr(acceptance, "run", run)
    limits = {"long": 50, "longer": 80, "brief": 20, "none left": 30}
    chosen = [python_step(acceptance, name, "", limit) for name, limit in limits.items()]
    _, skipped, _, none = carry_out(acceptance, tmp_path, chosen, seconds=90)
    assert skipped["reason"] == "it may take 80 s, 40 of --seconds were left"
    assert none["reason"] == "it may take 30 s, 20 of --seconds were left"
    # the first may use what is nobody's, the last no more than twice its own
    assert given == {"long": 70, "brief": 40}


def options(acceptance, *given):
    arguments = acceptance.options().parse_args(list(given))
    arguments.output = arguments.output.absolute()
    return arguments


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ((), "facts tests mixers convolutions lightweight taps composite translators "
         "decoding"),
        (("--only", "facts", "multi30k-dynamic", "multi30k-attention"),
         "facts multi30k-dynamic multi30k-attention"),
        (("--only", "facts", "dropout", "short", "more-translators", "more-decoding",
          "more-language-models"),
         "facts dropout short more-translators more-decoding more-language-models"),
        (("--only", "facts", "language-models", "dynamic-conv1d"),
         "facts language-models dynamic-conv1d"),
        (("--seconds", "1870"), None),
    ],
)  # fmt: skip
def test_what_nine_minutes_and_more_hold(acceptance, monkeypatch, given, taken):
    """As docs/gpu-checks.md says."""
    monkeypatch.setattr(acceptance, "find_spec", lambda name: True)
    arguments = options(acceptance, *given, "--source", ".")
    every = acceptance.steps(arguments)
    chosen = [step for step in every if step.name in (arguments.only or [s.name for s in every])]
    plan = acceptance.planned(chosen, arguments)
    fitting = [name for name, reason in plan.items() if not reason]
    assert fitting == (taken.split() if taken else [step.name for step in every])
    assert sum(step.limit for step in chosen if not plan[step.name]) <= arguments.seconds


def test_training_ends_in_time_to_be_scored(acceptance):
    arguments = options(acceptance, "--source", ".", "--training-seconds", "600")
    step = next(s for s in acceptance.steps(arguments) if s.name == "multi30k-attention")
    assert step.command[-3:] == ["--", "--stop-time-hours", "0.1667"] and step.limit == 730


needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="needs Triton")


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_the_benchmarks_know_the_options_they_are_given_on_a_gpu(
    acceptance, benchmark_of, monkeypatch, capsys, tmp_path
):
    arguments = options(acceptance, "--output", str(tmp_path))
    for step in acceptance.steps(arguments):
        if step.read is acceptance.rows_of_csv and step.name != "short":  # it asks PyTorch itself
            script, *given = step.command[1:]
            monkeypatch.setattr(sys, "argv", [script, *given])
            with pytest.raises(SystemExit):
                benchmark_of(Path(script).stem).main()
            assert "PyTorch sees no GPU" in capsys.readouterr().err, step.name


def test_whole_models_are_trained_in_a_precision_that_they_know(
    acceptance, benchmark_of, monkeypatch, capsys, tmp_path
):
    """fairseq takes --bf16 for a TPU, where no model of ours unsets it."""
    end_to_end = benchmark_of("end_to_end")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(end_to_end, "measure", lambda commands, arguments: [])
    for step in acceptance.steps(options(acceptance, "--output", str(tmp_path))):
        if "end_to_end" in step.command[1]:
            monkeypatch.setattr(sys, "argv", step.command[1:])
            end_to_end.main()
    argv = ["end_to_end", "--device", "cuda", "--models", "dynamic,lightconv"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit):
        end_to_end.main()
    assert "--models lightconv: fairseq takes --bf16 for a TPU" in capsys.readouterr().err


def test_programs_of_pip_install_target_are_found(benchmark_of, monkeypatch, tmp_path):
    measuring = benchmark_of("measuring")
    package, name = tmp_path / "fairseq" / "__init__.py", "fairseq-nothing"
    monkeypatch.setattr(
        measuring.importlib.util, "find_spec", lambda _: SimpleNamespace(origin=package)
    )
    with pytest.raises(SystemExit, match=f"{name} is not installed"):
        measuring.program(name)
    program = tmp_path / "bin" / name
    program.parent.mkdir()
    program.touch(0o755)
    assert measuring.program(name) == str(program)


def test_only_an_abort_after_the_last_update_is_no_failure(benchmark_of):
    aborted = benchmark_of("end_to_end")._aborted_after_training
    assert aborted(-6, "... | done training in 3 seconds")
    assert not aborted(-9, "... | done training in 3 seconds") and not aborted(-6, "epoch 1")


def aims_of(acceptance, **rows_of_steps):
    """What was measured and whether it is met, by aim."""
    rows = acceptance.aims([{"name": n, "rows": rows} for n, rows in rows_of_steps.items()])
    return {row["aim"]: (row["worst"], row["measured"], row["met"]) for row in rows}


def timed(fields, *figures, value="milliseconds"):
    names = (*fields.split(), value)
    return [dict(zip(names, map(str, each), strict=True)) for each in figures]


def test_all_aims_are_unmeasured_at_first(acceptance):
    found = aims_of(acceptance)
    assert len(found) == 2 * 16 + 4 + 6 + 3 + 2
    assert {(worst, met) for worst, _, met in found.values()} == {("", "not measured")}


def test_aims_of_convolutions(acceptance):
    """(2 C + H K) / 2 C and (5 C + 3 H K) / 2 C copies, with C = 1024, H = 16, K = 31; of
    lightweight ones 1 and 2.5."""
    fields = "pass kernel_size tokens implementation"
    copies = {"forward": 1.2421875, "training": 3.2265625}
    dynamic = timed(
        fields,
        *(("forward", 31, t, "triton", copies["forward"] / 0.72) for t in (256, 1024, 4096)),
        ("training", 31, 256, "triton", copies["training"] / 0.5),
        ("training", 31, 1024, "triton", copies["training"] / 0.65),
        *((which, 31, t, "copy", 1) for which in copies for t in (256, 1024, 4096)),
        *((which, 31, t, "attention", 6.4) for which in copies for t in (256, 1024, 4096)),
    )
    lightweight = timed(
        fields, ("training", 3, 1024, "triton", 4), ("training", 3, 1024, "copy", 1)
    )
    found = aims_of(acceptance, convolutions=dynamic, lightweight=lightweight)
    share, times = "share of the memory bandwidth", "x PyTorch's attention's time"
    assert found[f"dynamic, 31 taps, forward: {share}"] == ("0.7200", "3 of 3", "yes")
    assert found[f"dynamic, 31 taps, training: {share}"] == ("0.5000", "2 of 3", "no")
    assert found[f"dynamic, 31 taps, forward: {times}"] == ("0.2696", "3 of 3", "yes")
    assert found[f"dynamic, 31 taps, training: {times}"] == ("1.008", "2 of 3", "no")
    assert found[f"lightweight, 3 taps, training: {share}"] == ("0.6250", "1 of 3", "not measured")
    assert found[f"lightweight, 3 taps, training: {times}"] == ("", "0 of 3", "not measured")


def test_aims_beside_other_libraries(acceptance):
    fields = "convolution pass kernel_size implementation"
    rows = timed(
        fields,
        *(("lightweight", "forward", size, "triton", 1.0) for size in (3, 4)),
        *(("lightweight", "forward", size, "causal-conv1d", size / 3.5) for size in (3, 4)),
    )
    others = timed(
        fields,
        ("dynamic", "training", 3, "triton", 1),
        ("dynamic", "training", 3, "dynamic-conv1d", 2),
    )
    found = aims_of(acceptance, taps=rows, **{"dynamic-conv1d": others})
    name = "lightweight, 3 and 4 taps, forward: x causal-conv1d's time"
    assert found[name] == ("1.167", "2 of 2", "no")
    name = "dynamic, 3 and 4 taps, training: x dynamic-conv1d's time"
    assert found[name] == ("0.5000", "1 of 2", "not measured")


def test_aims_of_composite_attention_and_models(acceptance):
    layers = (("training", "layer", kind, ms) for kind, ms in (("none", 2), ("headwise", 2.24)))
    short = timed("pass part kind", *layers, value="ms")
    found = aims_of(acceptance, short=short)
    name = "a layer with headwise short convolutions, training: x its time without"
    assert found[name] == ("1.120", "1 of 1", "no")
    took = {
        "FlashAttention": 1,
        "sdpa, is_causal": 9,
        "content,fixed": 1.2,
        "content,fixed,query": 1.39,
    }
    cases = [(w, t, *each) for w in ("forward", "training") for t in (512, 2048)
             for each in took.items()]  # fmt: skip
    speeds = ("translation", "dynamic", 1.11), ("translation", "attention", 1)
    decoded = [(f"{mixer}_wmt_en_de_big", speed) for mixer, speed in
               (("attention", 1), ("dynamic_conv", 1.15))]  # fmt: skip
    found = aims_of(
        acceptance,
        composite=timed("pass tokens implementation", *cases),
        translators=timed("task model", *speeds, value="tokens_per_second"),
        decoding=timed("architecture", *decoded, value="sentences_per_second"),
    )
    times, name = "x FlashAttention's time", "dynamic_conv_wmt_en_de_big"
    assert found[f"content,fixed, forward: {times}"] == ("1.200", "2 of 2", "no")
    assert found[f"content,fixed, training: {times}"] == ("1.200", "2 of 2", "yes")
    assert found[f"content,fixed,query, forward: {times}"] == ("1.390", "2 of 2", "yes")
    assert found[f"content,tisa, forward: {times}"] == ("", "0 of 2", "not measured")
    trained, decoded = ("training: x attention's tokens/s", "decoding: x attention's sentences/s")
    assert found[f"{name}, {trained}"] == ("1.110", "1 of 1", "yes")
    assert found[f"{name}, {decoded}"] == ("1.150", "1 of 1", "no")


def causal_conv1d_fn(x, weight):
    """As Dao-AILab/causal-conv1d documents it: x [batch, channels, time], weight [channels, K]."""
    padded = F.pad(x, (weight.size(1) - 1, 0))
    return F.conv1d(padded, weight.unsqueeze(1), groups=x.size(1))


def headwise_dynamic_convolution(x, weight, static_w=0, residual=False):
    """As OliverSieberling/dynamic-conv1d documents it: y[b, t, c] = sum_w (weight[b, t, head(c), w]
    + static_w[w, c]) x[b, t - w, c], and x[b, t, c] if residual."""
    of_channels = weight.repeat_interleave(x.size(2) // weight.size(2), 2).transpose(2, 3)
    kernels = of_channels + static_w
    y = x if residual else torch.zeros_like(x)
    for lag in range(weight.size(3)):
        y = y + kernels[:, :, lag] * F.pad(x, (0, 0, lag, 0))[:, : x.size(1)]
    return y


def lowrank_dynamic_convolution(x, z, U, static_w, residual):
    """As above, with weight[b, t, c, w] = (z[b, t] U)[w, c]."""
    predicted = (z @ U).unflatten(2, (-1, x.size(2))).transpose(2, 3)
    return headwise_dynamic_convolution(x, predicted, static_w, residual)


def test_other_short_convolutions_get_the_same_work(benchmark_of, monkeypatch):
    short = benchmark_of("short_convolutions")
    for module, function in (
        ("headwise", headwise_dynamic_convolution),
        ("lowrank", lowrank_dynamic_convolution),
    ):
        installed = SimpleNamespace(**{function.__name__: function})
        monkeypatch.setitem(sys.modules, module, installed)
    x = torch.randn(7, 2, short.WIDTH)
    kinds = short.kinds_of("operation", Namespace(dynamic_conv1d=True))[-2:]
    assert kinds == ["headwise, dynamic-conv1d", "low_rank, dynamic-conv1d"]
    for kind in kinds:
        results = []
        for name in (kind.partition(",")[0], kind):
            torch.manual_seed(1)
            compute, given = short.operation(name, x)
            results.append(compute(*given))
        torch.testing.assert_close(results[1].transpose(0, 1), results[0], atol=1e-4, rtol=1e-4)


def test_training_a_short_convolution_takes_every_gradient(benchmark_of):
    short = benchmark_of("short_convolutions")
    compute, given = short.operation("low_rank", torch.randn(3, 2, short.WIDTH))
    step, seen = short._step(compute, given, "low_rank", training=True), set()
    for n, tensor in enumerate(given):
        tensor.register_hook(lambda _, n=n: seen.add(n))
    step()
    assert seen == set(range(4))


def test_short_convolutions_of_others_need_a_gpu_and_their_folder(
    benchmark_of, monkeypatch, capsys
):
    short = benchmark_of("short_convolutions")
    monkeypatch.setattr(sys, "argv", ["short_convolutions.py", "--dynamic-conv1d"])
    for found, message in ((None, "cannot import headwise"), (True, "need --device cuda")):
        monkeypatch.setattr(short, "find_spec", lambda _, found=found: found)
        with pytest.raises(SystemExit):
            short.main()
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("library", "module", "function", "convolution", "to_ours"),
    [
        ("causal-conv1d", "causal_conv1d", causal_conv1d_fn, "lightweight", (2, 0, 1)),
        ("dynamic-conv1d", "headwise", headwise_dynamic_convolution, "dynamic", (1, 0, 2)),
    ],
)
def test_other_libraries_get_the_same_work(
    benchmark_of, monkeypatch, library, module, function, convolution, to_ours
):
    conv_ops = benchmark_of("conv_ops")
    installed = SimpleNamespace(**{function.__name__: function})
    monkeypatch.setitem(sys.modules, module, installed)
    problem = conv_ops.Problem(convolution, 4, 9, 2, 6, 3, "float32", 1, softmax=False)
    results = []
    for name in ("reference", "tiled", "fairseq", "loop", library):
        compute, tensors = conv_ops.operation(name, problem)
        y = compute(*tensors)
        results.append(y.permute(to_ours) if name == library else y)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
    assert conv_ops.computes(library, problem)
    assert not conv_ops.computes(library, problem._replace(softmax=True))


def test_bad_options_are_refused_before_any_step(acceptance, tmp_path, monkeypatch, capsys):
    missing = str(tmp_path / "absent")
    for options, message in (
        (("--only", "speed"), "'speed' is none of facts, tests"),
        (("--source", missing), "there is no folder"),
        (("--output", str(tmp_path), "--smoke"), "is there already"),
        *[((), "PyTorch sees no GPU")] * (not torch.cuda.is_available()),
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
        [sys.executable, script, *options.split(), "--csv", file], capture_output=True, text=True
    )
    if run.returncode == 3:
        pytest.skip("this build of Triton compiles for no NVIDIA GPU")
    assert run.returncode == 0, run.stderr[-2000:]
    with file.open() as rows:
        return list(csv.DictReader(rows))


@needs_triton
@pytest.mark.slow
def test_composite_attention_hardly_spills(tmp_path):
    """Blocks that spill nothing are slower on an H100."""
    rows = compiled_rows(tmp_path / "kernels.csv", "--operations attention")
    assert len(rows) == 27
    assert all(int(row["spilled bytes"]) <= 64 for row in rows)


@needs_triton
@pytest.mark.slow
def test_convolutions_hardly_spill_and_move_128_bits(tmp_path):
    options = "--operations convolution --capabilities 90 --kernel-sizes 3,16,31"
    rows = compiled_rows(tmp_path / "kernels.csv", options)
    assert len(rows) == 20
    for row in rows:
        spilled = 8 if row["case"] == "dynamic 31" else 0  # by Triton 3.9
        assert int(row["spilled bytes"]) <= spilled, row
        assert int(row["bound in % of target"]) <= 100, row
        assert "128x" in row["loads"] and "128x" in row["stores"], row


@needs_triton
@pytest.mark.slow
def test_short_convolutions_spill_nothing(tmp_path):
    options = "--operations short_convolution --capabilities 90"
    rows = compiled_rows(tmp_path / "kernels.csv", options)
    assert len(rows) == 10 and all(row["spilled bytes"] == "0" for row in rows)


def smoke_test(folder, *options):
    run = subprocess.run(
        [sys.executable, SCRIPT, "--smoke", "--output", folder, "--seconds", "2400", *options],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    steps = json.loads((folder / "acceptance.json").read_text())["steps"]
    assert all(step["status"] == "passed" and step["rows"] for step in steps)
    return steps


@pytest.mark.slow
@pytest.mark.ci
def test_smoke_of_some_steps(tmp_path):
    chosen = ["facts", "tests"]
    steps = smoke_test(tmp_path / "accepted", "--only", *chosen)
    assert [step["name"] for step in steps] == chosen


@pytest.mark.slow
def test_smoke(tmp_path):
    steps = smoke_test(tmp_path / "accepted")
    assert len(steps) == 11
    rows = {step["name"]: step["rows"] for step in steps}
    assert {row["mixer"].split()[1] for row in rows["mixers"] if "short" in row["mixer"]} == {
        "static", "headwise", "low_rank"
    }  # fmt: skip
    updates, *scores = rows["multi30k-dynamic"]
    assert updates["name"] == "updates" and updates["score"] > 0
    assert {"test_2016_flickr BLEU", "test_2017_flickr BLEU"} <= {row["name"] for row in scores}
    assert {row["task"] for row in rows["translators"]} == {"translation"}
    assert [row["architecture"] for row in rows["decoding"]] == [
        "attention_tiny",
        "dynamic_conv_tiny",
    ]
    page = (tmp_path / "accepted" / "acceptance.md").read_text()
    assert "its figures mean nothing" in page and str(tmp_path) not in page
