"""convattn glue finetune: training with several seeds, its results and what it refuses."""

import json
import shlex
import shutil
from pathlib import Path

import finetuning_cases
import pytest
import torch
from conftest import train
from fairseq.data import data_utils
from finetuning_cases import ON_CPU, SHRUNK, files, finetuned, results, run_of

from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.folder_lock import locked
from fairseq_convattn.glue import __main__ as glue
from fairseq_convattn.glue import finetuning
from fairseq_convattn.glue.finetuning import Run, finetune
from fairseq_convattn.glue.tasks import GlueError

folder = finetuning_cases.folder
model = finetuning_cases.model
roberta = finetuning_cases.roberta
in_process = finetuning_cases.in_process


@pytest.mark.slow
def test_finetuning_runs_fairseqs_command(folder, model, tmp_path, capsys):
    output = tmp_path / "SST-2"
    given = ["--data", str(folder / "bin"), "--output", str(output), "--epochs", "1", "--seeds"]
    glue.main(["finetune", "SST-2", str(model), *given, "2", "--", *ON_CPU])
    assert "epoch 1: training loss" in capsys.readouterr().out
    assert "done training" in (output / "seed2" / "train.log").read_text()


@pytest.mark.parametrize("loss", ["0.693", "nan", "inf"])
def test_losses_that_are_no_numbers_are_shown_too(loss):
    line = f"2026 | INFO | train | epoch 002 | loss {loss} | nll_loss 1"
    assert finetuning._LOSS.findall(line) == [("2", loss)]


def test_finetuning_learns_and_a_finished_seed_is_not_trained_again(
    folder, model, tmp_path, capsys, in_process
):
    output = tmp_path / "new" / "SST-2"
    arguments = ["finetune", "SST-2", str(model), "--data", str(folder / "bin"), "--lr", "0.01"]
    arguments += ["--output", str(output), "--batch-size", "16", "--epochs", "3", "--seeds"]
    extra = ["--", *ON_CPU, "--dropout", "0.05"]
    glue.main([*arguments, "2", *extra])
    trained = (output / "seed2" / "train.log").stat().st_mtime_ns
    glue.main([*arguments, "2", *extra])
    assert "seed 2 is done already" in capsys.readouterr().out and len(in_process) == 1
    assert (output / "seed2" / "train.log").stat().st_mtime_ns == trained
    found = results(output)
    (seed,) = found["seeds"]
    assert seed["scores"]["accuracy"] > 90
    assert (found["task"], found["metrics"]) == ("SST-2", ["accuracy"])
    assert found["examples"] == {"train": 300, "valid": 51}
    assert found["architecture"] == "composite_attention_bert_tiny"
    assert found["model"] == str(model)
    assert seed["checkpoint"] == str(output / "seed2" / f"checkpoint{seed['epoch']}.pt")
    assert files(output / "seed2") == {
        *("train.log", "result.json", f"checkpoint{seed['epoch']}.pt")
    }
    command = shlex.split(seed["command"])
    assert command[0] == "fairseq-train" and "--finetune-from-model" in command
    assert command[command.index("--update-epoch-batch-itr") + 1] == "True"
    assert command[-2:] == ["--dropout", "0.05"]
    for option, value in (
        *(("--seed", 2), ("--total-num-update", 19 * 3), ("--warmup-updates", 5)),
        *(("--weight-decay", 0.01), ("--clip-norm", 1.0), ("--adam-betas", "(0.9, 0.999)")),
    ):
        assert command[command.index(option) + 1] == str(value)
    assert seed["updates"] == 19 * seed["epoch"]  # of 16 sentences
    assert len(seed["all_epochs"]) == 3
    versions = {"torch", "scikit-learn", "scipy", "python", "fairseq_convattn", "device"}
    assert versions <= set(seed["versions"])


def test_the_first_dev_set_decides_which_seed_is_best(tmp_path):
    scores = ({"accuracy_matched": 60.0, "accuracy_mismatched": 60.0}, {"accuracy_matched": 61.0})
    seeds = [
        {"seed": seed, "checkpoint": f"elsewhere/seed{seed}/checkpoint3.pt", "scores": found}
        for seed, found in enumerate((scores[0], scores[1] | {"accuracy_mismatched": 40.0}), 1)
    ]
    (tmp_path / "results.json").write_text(json.dumps({"task": "MNLI", "seeds": seeds}))
    assert finetuning.best_checkpoint(tmp_path) == tmp_path / "seed2" / "checkpoint3.pt"


def test_a_model_tuned_twice_is_beside_the_folder_of_the_first_task(tmp_path, monkeypatch):
    folder, runs = tmp_path / "MNLI", []
    folder.mkdir()
    best = {"seed": 2, "checkpoint": "seed2/checkpoint3.pt", "scores": {"accuracy_matched": 60.0}}
    (folder / "results.json").write_text(json.dumps({"task": "MNLI", "seeds": [best]}))
    monkeypatch.setattr(glue, "finetune", lambda *given: runs.append(given))
    glue.main(["finetune", "RTE", str(folder)])
    ((run, seeds),) = runs
    assert run.model == folder / "seed2" / "checkpoint3.pt"
    assert run.output == tmp_path / "MNLI-glue" / "RTE"
    assert (run.lr, run.batch_size, run.epochs, seeds) == (2e-5, 32, 3, [1, 2, 3])
    glue.main(["finetune", "RTE", "lm/model.pt"])
    assert runs[1][0].output == Path("lm/model-glue/RTE")


def test_fine_tuning_starts_from_the_best_seed_of_another_task(folder, model, tmp_path, in_process):
    """MNLI's classifier has three outputs, STS-B's one: all else is taken over."""
    first = finetuned("MNLI", folder, model, tmp_path / "MNLI", 1, 2, epochs=1)
    best = max(first["seeds"], key=lambda one: one["scores"]["accuracy_matched"])
    start = finetuning.best_checkpoint(tmp_path / "MNLI")
    found = finetuned("STS-B", folder, start, tmp_path / "STS-B", lr=1e-20)
    assert found["model"] == best["checkpoint"]
    start, tuned = (
        torch.load(path, weights_only=False)["model"]
        for path in (best["checkpoint"], found["seeds"][0]["checkpoint"])
    )
    taken = [name for name in start if "classification_heads" not in name]
    assert taken and all(torch.allclose(start[name], tuned[name]) for name in taken)
    head = "classification_heads.sentence_classification_head.out_proj.weight"
    assert (start[head].size(0), tuned[head].size(0)) == (3, 1)


def test_an_interrupted_seed_continues(folder, roberta, tmp_path, in_process, monkeypatch):
    """It was interrupted while fairseq copied the epoch's checkpoint to the last."""
    run = run_of("MRPC", folder, roberta, tmp_path / "out")
    whole = finetuning.run_command

    def interrupted(command: list[str], log: Path) -> None:
        whole([*command, "--max-epoch", "1"], log)
        raise KeyboardInterrupt

    monkeypatch.setattr(finetuning, "run_command", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finetune(run, [1])
    first = (tmp_path / "out" / "seed1" / "checkpoint1.pt").stat().st_mtime_ns
    state = tmp_path / "out" / "seed1" / "checkpoint_last.pt"
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    seen = []

    def scored(task, checkpoint: Path, *_) -> dict:
        seen.append(checkpoint.stat().st_mtime_ns)
        return evaluated({"accuracy": 50.0, "f1": 50.0}, len(seen), checkpoint)

    monkeypatch.setattr(finetuning, "run_command", whole)
    monkeypatch.setattr(finetuning, "evaluate", scored)
    finetune(run, [1])
    assert seen[0] == first and len(seen) == 2
    assert (tmp_path / "out" / "results.json").exists()


@pytest.mark.slow
@pytest.mark.ci
def test_an_interrupted_seed_has_the_weights_of_an_uninterrupted_one(
    folder, model, tmp_path, in_process, monkeypatch
):
    """In bfloat16, where fairseq's own optimizer forgets the float32 weights."""
    whole, weights = finetuning.run_command, []

    def interrupted(command: list[str], log: Path) -> None:
        whole([*command, "--max-epoch", "1"], log)
        whole(command, log)

    def scored(task, checkpoint: Path, *_) -> dict:
        weights.append(torch.load(checkpoint)["model"])
        return evaluated({"accuracy": 50.0, "f1": 50.0}, len(weights), checkpoint)

    monkeypatch.setattr(finetuning, "evaluate", scored)
    for name, run in (("whole", whole), ("part", interrupted)):
        monkeypatch.setattr(finetuning, "run_command", run)
        finetuned("MRPC", folder, model, tmp_path / name, extra=(*ON_CPU, "--bf16"))
    _, expected, _, found = weights
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def evaluated(scores: dict[str, float], epoch: int, checkpoint: Path) -> dict:
    """In place of an evaluation."""
    updates = 5 * epoch
    return {"checkpoint": str(checkpoint), "scores": scores, "epoch": epoch, "updates": updates}


def finished(run: Run, pretrained, lengths, seed: int) -> None:
    """In place of training."""
    (run.output / f"seed{seed}").mkdir(exist_ok=True)
    record = {"seed": seed, "epoch": 1, "scores": {"accuracy": float(seed), "f1": 1.0}}
    (run.output / f"seed{seed}" / "result.json").write_text(json.dumps(record))


def test_results_are_those_of_all_finished_seeds(folder, roberta, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(finetuning, "_finetune_seed", finished)
    output = tmp_path / "out"
    finetuned("MRPC", folder, roberta, output, 2, 10)
    capsys.readouterr()
    (output / "seed3").mkdir()  # was interrupted
    found = finetuned("MRPC", folder, roberta, output)
    assert [seed["seed"] for seed in found["seeds"]] == [1, 2, 10]
    assert found["summary"]["accuracy"]["median"] == 2
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["10", "1", "10.00", "1.00"] in rows and ["median", "2.00", "1.00"] in rows
    with locked(output, "settings.json"), pytest.raises(BlockingIOError, match="another run"):
        finetuned("MRPC", folder, roberta, output, 4)


def test_the_best_epoch_is_kept(folder, roberta, tmp_path, monkeypatch):
    """By the mean of both metrics; the earlier one of two that are as good."""

    def trained(command: list[str], log: Path) -> None:
        for epoch in (1, 2, 10, 11):
            (log.parent / f"checkpoint{epoch}.pt").touch()
        (log.parent / "checkpoint_last.pt").touch()
        log.touch()

    def scored(task, checkpoint: Path, *_) -> dict:
        epoch = int(checkpoint.stem.removeprefix("checkpoint"))
        scores = {"accuracy": 60.0, "f1": 80.0 if epoch > 1 else 10.0}
        return evaluated(scores, epoch, checkpoint)

    monkeypatch.setattr(finetuning, "run_command", trained)
    monkeypatch.setattr(finetuning, "evaluate", scored)
    (seed,) = finetuned("MRPC", folder, roberta, tmp_path / "out", 4)["seeds"]
    assert (seed["epoch"], seed["updates"]) == (2, 10)
    assert [one["epoch"] for one in seed["all_epochs"]] == [1, 2, 10, 11]
    kept = {"checkpoint2.pt", "result.json", "train.log"}
    assert files(tmp_path / "out" / "seed4") == kept
    (tmp_path / "out" / "seed4" / "checkpoint1.pt").touch()  # as if killed before it was deleted
    (tmp_path / "out" / "seed4" / "checkpoint_avg.pt").touch()  # somebody's own
    finetuned("MRPC", folder, roberta, tmp_path / "out", 4)
    assert files(tmp_path / "out" / "seed4") == {*kept, "checkpoint_avg.pt"}
    (tmp_path / "out" / "seed4" / "checkpoint2.pt").rename(tmp_path / "best.pt")
    (tmp_path / "out" / "seed4" / "checkpoint1.pt").touch()
    finetuned("MRPC", folder, roberta, tmp_path / "out", 4)
    assert (tmp_path / "out" / "seed4" / "checkpoint1.pt").exists()


def test_results_of_other_settings_are_refused(folder, roberta, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "_finetune_seed", finished)
    output = tmp_path / "out"
    finetuned("MRPC", folder, roberta, output)
    for chosen, name in (
        ({"lr": 0.02}, "lr 0.01, not 0.02"),
        ({"epochs": 3}, "epochs 2, not 3"),
        ({"extra": ()}, "fairseq_arguments"),
    ):
        with pytest.raises(GlueError, match=f"{name}.*--output"):
            finetuned("MRPC", folder, roberta, output, **chosen)
    with pytest.raises(GlueError, match="task MRPC, not STS-B"):
        finetuned("STS-B", folder, roberta, output)
    copy, data = shutil.copy(roberta, tmp_path / "copy.pt"), tmp_path / "bin"
    data.symlink_to(folder / "bin")
    finetuned("MRPC", folder, Path(copy), output, data=data)  # the same model and data
    state = torch.load(roberta, weights_only=False)
    state["extra_state"]["more"] = 1
    torch.save(state, copy)
    with pytest.raises(GlueError, match="model_sha256"):
        finetuned("MRPC", folder, Path(copy), output)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="has files that are not of a run"):
        finetuned("MRPC", folder, roberta, tmp_path / "mine")
    assert files(tmp_path / "mine") == {"notes.txt"}


def test_long_examples_are_counted(folder, model, tmp_path, monkeypatch, capsys):
    data = folder / "bin" / "MRPC"
    first, second = (
        data_utils.load_indexed_dataset(str(data / f"input{i}" / "valid"), None) for i in (0, 1)
    )
    lengths = sorted(1 + len(a) + 1 + len(b) for a, b in zip(first, second, strict=True))
    limit = lengths[-1] - 1  # a token less than counted, and none would be cut
    cut = sum(length > limit for length in lengths)
    monkeypatch.setattr(finetuning, "_finetune_seed", finished)
    found = finetuned("MRPC", folder, model, tmp_path / "out", max_positions=limit)
    assert found["cut"]["valid"] == cut > 0
    said = capsys.readouterr().out
    assert f"note: {cut} of 8 examples of valid are cut to {limit} tokens" in said


def test_what_does_not_fit_is_refused_before_training(folder, model, roberta, tmp_path, data):
    output = tmp_path / "out"

    def refused(task: str, checkpoint: Path, match: str, **chosen) -> None:
        with pytest.raises((CheckpointError, GlueError), match=match):
            finetuned(task, folder, checkpoint, output, **chosen)

    refused("RTE", model, "there is no .*RTE/input0/train.idx; --data is the folder bin that")
    extra = (*ON_CPU, "--droput", "0.1")
    refused("MRPC", model, "^after --: unrecognized arguments: --droput 0.1$", extra=extra)
    for words in (
        *(("--seed", "7"), ("--batch-size=8",), ("--max-epoch", "1"), ("-aroberta",)),
        *(("--classification-head-name", "other"),),
    ):
        refused("MRPC", model, f"^{words[0]} after --: the command sets it", extra=words)
    for words in (("--no-save",), ("--save-interval", "2"), ("--stop-time-hours", "1")):
        refused("MRPC", model, f"^{words[0]} after --: the checkpoints of all", extra=words)
    refused("MRPC", roberta, "learned embeddings of 32 positions", max_positions=16)
    refused("MRPC", tmp_path / "none.pt", "there is no such file")
    arguments = ("--arch", "attention_tiny", *SHRUNK, "--no-epoch-checkpoints")
    train(data, tmp_path / "translation", *arguments)
    refused("MRPC", tmp_path / "translation" / "checkpoint_last.pt", "masked language model")
    entries = (folder / "dict.txt").read_text().splitlines()
    other = tmp_path / "bin" / "MRPC"
    shutil.copytree(folder / "bin" / "MRPC", other)
    (other / "input0" / "dict.txt").write_text("\n".join(entries[:-1]) + "\n")
    refused("MRPC", model, "types", data=other.parent)
    (other / "input0" / "dict.txt").write_text("\n".join(entries[::-1]) + "\n")
    order = "dictionary is not .*: it has as many types, .*prepare glue --dict"
    refused("MRPC", model, order, data=other.parent)
    index, dictionary = other / "input0" / "train.idx", other / "input0" / "dict.txt"
    dictionary.write_bytes("caf\xe9 1\n".encode("latin-1"))
    refused("MRPC", model, "dict.txt is not a dictionary of fairseq", data=other.parent)
    text = other / "input1" / "valid.bin"
    text.write_bytes(text.read_bytes()[:-40])
    refused("MRPC", model, "input1/valid.idx or .bin is cut off: remove", data=other.parent)
    index.write_bytes(index.read_bytes()[:20])
    refused("MRPC", model, "input0/train.idx or .bin is cut off: remove", data=other.parent)
    assert not output.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["CoLA", "x.pt", "--seeds", "1,0x"],
            "--seeds: must be a whole number of at least 1, not '0x'",
        ),
        (["CoLA", "x.pt", "--seeds", "1,2147483648"], "--seeds: must be below 2**31"),
        (["CoLA", "x.pt", "--dropout", "1"], "unrecognized arguments: --dropout 1"),
        (["CoLA", "x.pt", "--lr", "high"], "--lr: must be a number above 0, not 'high'"),
    ],
)
def test_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        glue.main(["finetune", *arguments])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert message in said


def test_a_folder_that_is_no_fine_tunings_is_refused():
    with pytest.raises(SystemExit, match="/ has no results.json of convattn glue finetune"):
        glue.main(["finetune", "CoLA", "/"])
