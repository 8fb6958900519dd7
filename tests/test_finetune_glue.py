"""scripts/finetune_glue.sh: small models, pre-trained for a moment, on generated tasks."""

import json
import math
import random
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from conftest import PLUGIN, train
from fairseq import checkpoint_utils, options
from fairseq import tasks as fairseq_tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import preprocess as preprocess_command
from fairseq_cli import train as train_command
from glue_miniature import miniature_sentences, write_miniature, write_pretrained, write_tsv

from fairseq_convattn.checkpoints.files import CheckpointError
from fairseq_convattn.folder_lock import locked
from fairseq_convattn.glue import __main__ as glue
from fairseq_convattn.glue import finetuning, submission
from fairseq_convattn.glue.binarising import Pieces, binarise
from fairseq_convattn.glue.evaluation import evaluate
from fairseq_convattn.glue.finetuning import Run, finetune
from fairseq_convattn.glue.metrics import score
from fairseq_convattn.glue.pretrained import read_pretrained
from fairseq_convattn.glue.tasks import HIGHEST_SCORE, TASKS, GlueError

SHRUNK = (
    *("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32", "--encoder-layers", "2"),
    *("--encoder-attention-heads", "2"),
)
MASKED_LM = (
    *("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "32"),
    *("--sample-break-mode", "complete", "--disable-validation", "--no-epoch-checkpoints"),
)
POSITIONS = 32
PAIRS = ("MRPC", "STS-B", "MNLI")
CLASSES = (
    *("--criterion", "sentence_prediction", "--num-classes", "2"),
    *("--max-positions", str(POSITIONS)),
)
ON_CPU = ("--cpu", "--num-workers", "0")


def sentiments(count: int, rng: random.Random) -> list[dict[str, str]]:
    """Sentences of which those with a `good` are positive."""
    rows = []
    for number in range(count):
        words = rng.choices(["the", "cat", "sat", "on", "a", "mat"], k=rng.randint(2, 6))
        words.insert(rng.randrange(len(words)), "good" if number % 2 else "bad")
        rows.append({"sentence": " ".join(words), "label": str(number % 2)})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """tsv, bin with SST-2 and the tasks of PAIRS, and text for pre-training in lm."""
    folder, rng = tmp_path_factory.mktemp("glue"), random.Random(3)
    rows = write_miniature(folder / "tsv")
    for file, count in (("train", 300), ("dev", 51)):
        rows["SST-2", file] = sentiments(count, rng)
        path = folder / "tsv" / "SST-2" / f"{file}.tsv"
        write_tsv(path, ("sentence", "label"), rows["SST-2", file])
    sentences = miniature_sentences(rows)
    model, dictionary = write_pretrained(folder, sentences, size=90)
    pieces = Pieces(model, dictionary)
    binarise(("SST-2", *PAIRS), folder / "tsv", folder / "bin", pieces, sample=True)
    encoded = (" ".join(pieces.processor.encode(s, out_type=str)) for s in sentences)
    (folder / "pieces").write_text("".join(f"{line}\n" for line in encoded), encoding="utf-8")
    arguments = ["--only-source", "--srcdict", str(dictionary), "--destdir", str(folder / "lm")]
    arguments += ["--trainpref", str(folder / "pieces")]
    preprocess_command.main(options.get_preprocessing_parser().parse_args(arguments))
    return folder


def pretrain(folder: Path, output: Path, *extra: str) -> Path:
    train(folder / "lm", output, *MASKED_LM, *SHRUNK, *extra)
    return output / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def model(folder) -> Path:
    arguments = ("--arch", "composite_attention_bert_tiny", "--attention-span", "3")
    return pretrain(folder, folder / "composite", *arguments)


@pytest.fixture(scope="module")
def roberta(folder) -> Path:
    arguments = ("--arch", "roberta", "--untie-weights-roberta")
    return pretrain(folder, folder / "roberta", *arguments)


@pytest.fixture
def in_process(monkeypatch) -> list[list[str]]:
    """fairseq-train in this process, which is faster; the commands that were run."""
    commands = []

    def run(command: list[str], log: Path) -> None:
        commands.append(command)
        log.touch()
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        arguments = options.parse_args_and_arch(options.get_training_parser(), command[1:])
        train_command.main(convert_namespace_to_omegaconf(arguments))

    monkeypatch.setattr(finetuning, "run_command", run)
    return commands


def run_of(task: str, folder: Path, model: Path, output: Path, **chosen) -> Run:
    defaults = {"lr": 0.01, "batch_size": 4, "epochs": 2, "max_positions": None, "extra": ON_CPU}
    return Run(task, model, folder / "bin", output, **{**defaults, **chosen})


def results(output: Path) -> dict:
    return json.loads((output / "results.json").read_text())


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.ci
def test_finetuning_runs_fairseqs_command(folder, model, tmp_path, capsys):
    output = tmp_path / "SST-2"
    given = ["--data", str(folder / "bin"), "--output", str(output), "--epochs", "1", "--seeds"]
    glue.main(["finetune", "SST-2", str(model), *given, "2", "--", *ON_CPU])
    assert "epoch 1: training loss" in capsys.readouterr().out
    assert "done training" in (output / "seed2" / "train.log").read_text()


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
    for option, value in (("--seed", 2), ("--total-num-update", 19 * 3), ("--warmup-updates", 5)):
        assert command[command.index(option) + 1] == str(value)
    assert seed["updates"] == 19 * seed["epoch"]  # of 16 sentences
    assert len(seed["all_epochs"]) == 3
    versions = {"torch", "scikit-learn", "scipy", "python", "fairseq_convattn", "device"}
    assert versions <= set(seed["versions"])


@torch.no_grad()
def one_by_one(task: str, folder: Path, checkpoint: Path, subset: str) -> tuple[list, list]:
    """Labels from the TSV's binarised labels, predictions of inputs put together by hand."""
    data = folder / "bin" / task
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], {"data": str(data)}
    )
    first, second = (
        data_utils.load_indexed_dataset(str(data / f"input{i}" / subset), None) for i in (0, 1)
    )
    predictions = []
    for one, other in zip(first, second, strict=True):
        tokens = torch.cat([torch.tensor([0]), one, torch.tensor([2]), other])[:POSITIONS]
        outputs, _ = model.eval()(
            tokens[None].long(),
            features_only=True,
            classification_head_name="sentence_classification_head",
        )
        is_class = bool(TASKS[task].classes)
        predictions.append(int(outputs.argmax()) if is_class else float(outputs))
    if TASKS[task].classes and subset in TASKS[task].files:
        labels = data_utils.load_indexed_dataset(str(data / "label" / subset), None)
        return [int(label[0]) - 4 for label in labels], predictions
    if subset in TASKS[task].test_files:
        return [], predictions
    lines = (data / "label" / f"{subset}.label").read_text().split()
    return [HIGHEST_SCORE * float(line) for line in lines], predictions


@pytest.mark.parametrize("task", ["STS-B", "MNLI"])
def test_scores_are_those_of_all_dev_examples(task, folder, roberta, tmp_path, in_process):
    finetune(run_of(task, folder, roberta, tmp_path / "out"), [1])
    found = results(tmp_path / "out")["seeds"][0]
    expected = {}
    for subset, suffix in TASKS[task].dev_sets.items():
        scores = score(TASKS[task], *one_by_one(task, folder, found["checkpoint"], subset))
        expected |= {f"{name}{suffix}": value for name, value in scores.items()}
    # random predictions hardly differ, so a correlation has few digits
    assert found["scores"] == pytest.approx(expected, abs=1e-2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = folder / "bin" / task
        again = evaluate(TASKS[task], Path(found["checkpoint"]), data, batch_size=3)
    assert not [one for one in caught if "pin_memory" in str(one.message)]
    assert again["scores"] == pytest.approx(expected, abs=1e-2)
    if task == "MNLI":
        assert set(expected) == {"accuracy_matched", "accuracy_mismatched"}


@pytest.mark.parametrize("task", ["STS-B", "MNLI"])
def test_predictions_of_the_test_sets_in_the_format_of_glues_server(
    task, folder, roberta, tmp_path, in_process, capsys
):
    tuned, trained_on = tmp_path / "tuned", tmp_path / "bin"
    shutil.copytree(folder / "bin" / task, trained_on / task)
    finetune(run_of(task, folder, roberta, tuned)._replace(data=trained_on), [1, 2])
    shutil.rmtree(trained_on)
    best = max(results(tuned)["seeds"], key=lambda one: list(one["scores"].values())[0])
    data, output = ["--data", str(folder / "bin")], ["--output", str(tmp_path / "new" / "out")]
    glue.main(["predict", task, str(tuned), *data, *output])
    assert "wrote" in capsys.readouterr().out
    suffixes = {"test": "-m", "test1": "-mm"} if task == "MNLI" else {"test": ""}
    names = {f"{task}{suffix}.tsv" for suffix in suffixes.values()}
    assert files(tmp_path / "new" / "out") == names
    for subset, suffix in suffixes.items():
        _, expected = one_by_one(task, folder, best["checkpoint"], subset)
        text = (tmp_path / "new" / "out" / f"{task}{suffix}.tsv").read_text()
        header, *rows = (line.split("\t") for line in text.splitlines())
        assert header == ["index", "prediction"]
        assert [int(number) for number, _ in rows] == list(range(len(expected)))
        if task == "MNLI":
            assert [made for _, made in rows] == [TASKS[task].classes[i] for i in expected]
        else:
            scores = [min(max(5 * made, 0), 5) for made in expected]
            assert [float(made) for _, made in rows] == pytest.approx(scores, abs=2e-3)
    moved = tuned.rename(tmp_path / "moved")
    last = ["--output", str(tmp_path / "again")]
    glue.main(["predict", task, str(moved), *data, *last])
    assert files(tmp_path / "again") == names
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text('{"task": "translation"}')
    (tmp_path / "text.pt").write_text("no checkpoint")
    for name, given, where, message in (
        (task, moved, output, "is there already"),
        ("MRPC", moved, last, "checkpoint.*pt is not fine-tuned on MRPC"),
        (task, roberta, ["--output", str(tmp_path / "b")], f"last.pt is not fine-tuned on {task}$"),
        (task, tmp_path / "text.pt", ["--output", str(tmp_path / "c")], "text.pt"),
        (task, tmp_path / "none.pt", ["--output", str(tmp_path / "d")], "there is no such file"),
        (task, tmp_path / "new", last, "has no results.json"),
        (task, tmp_path / "run", last, "is no output of convattn glue finetune"),
        ("RTE", moved, last, "has no test set.*RTE/test.tsv"),
        (task, moved, ["--output", str(tmp_path / "text.pt" / "x")], "text.pt"),
    ):
        with pytest.raises(SystemExit, match=f"^error: .*{message}"):
            glue.main(["predict", name, str(given), *data, *where])


def test_a_model_that_has_diverged_gets_no_scores(folder, roberta, tmp_path, in_process):
    """The first class is the largest of those that are not a number."""
    finetune(run_of("MRPC", folder, roberta, tmp_path / "out", epochs=1), [1])
    tuned = results(tmp_path / "out")["seeds"][0]["checkpoint"]
    state = torch.load(tuned, weights_only=False)
    state["model"]["classification_heads.sentence_classification_head.out_proj.bias"] *= math.nan
    torch.save(state, tuned)
    with pytest.raises(GlueError, match="a prediction is not a number"):
        evaluate(TASKS["MRPC"], Path(tuned), folder / "bin" / "MRPC", 4)


def test_predictions_stay_within_the_scores():
    assert [submission._word(TASKS["STS-B"], made) for made in (-0.1, 0.5, 1.2)] == [
        *("0.000", "2.500", "5.000")
    ]


def test_the_first_dev_set_decides_which_seed_is_best(tmp_path):
    scores = ({"accuracy_matched": 60.0, "accuracy_mismatched": 60.0}, {"accuracy_matched": 61.0})
    seeds = [
        {"seed": seed, "checkpoint": f"elsewhere/seed{seed}/checkpoint3.pt", "scores": found}
        for seed, found in enumerate((scores[0], scores[1] | {"accuracy_mismatched": 40.0}), 1)
    ]
    (tmp_path / "results.json").write_text(json.dumps({"task": "MNLI", "seeds": seeds}))
    assert finetuning.best_checkpoint(tmp_path) == tmp_path / "seed2" / "checkpoint3.pt"


def test_fine_tuning_starts_from_the_best_seed_of_another_task(folder, model, tmp_path, in_process):
    """MNLI's classifier has three outputs, STS-B's one: all else is taken over."""
    finetune(run_of("MNLI", folder, model, tmp_path / "MNLI", epochs=1), [1, 2])
    best = max(
        results(tmp_path / "MNLI")["seeds"], key=lambda one: one["scores"]["accuracy_matched"]
    )
    finetune(run_of("STS-B", folder, tmp_path / "MNLI", tmp_path / "STS-B", lr=1e-20), [1])
    found = results(tmp_path / "STS-B")
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
    run = run_of("MRPC", folder, roberta, output)
    finetune(run, [2, 10])
    capsys.readouterr()
    (output / "seed3").mkdir()  # was interrupted
    finetune(run, [1])
    found = results(output)
    assert [seed["seed"] for seed in found["seeds"]] == [1, 2, 10]
    assert found["summary"]["accuracy"]["median"] == 2
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["10", "1", "10.00", "1.00"] in rows and ["median", "2.00", "1.00"] in rows
    with locked(output), pytest.raises(BlockingIOError, match="another run is writing to"):
        finetune(run, [4])


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
    finetune(run_of("MRPC", folder, roberta, tmp_path / "out"), [4])
    (seed,) = results(tmp_path / "out")["seeds"]
    assert (seed["epoch"], seed["updates"]) == (2, 10)
    assert [one["epoch"] for one in seed["all_epochs"]] == [1, 2, 10, 11]
    assert files(tmp_path / "out" / "seed4") == {"checkpoint2.pt", "result.json", "train.log"}


def test_results_of_other_settings_are_refused(folder, roberta, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "_finetune_seed", finished)
    output = tmp_path / "out"
    finetune(run_of("MRPC", folder, roberta, output), [1])
    for chosen, name in (
        ({"lr": 0.02}, "lr 0.01, not 0.02"),
        ({"epochs": 3}, "epochs 2, not 3"),
        ({"extra": ()}, "fairseq_arguments"),
    ):
        with pytest.raises(GlueError, match=f"{name}.*--output"):
            finetune(run_of("MRPC", folder, roberta, output, **chosen), [1])
    with pytest.raises(GlueError, match="task MRPC, not STS-B"):
        finetune(run_of("STS-B", folder, roberta, output), [1])
    copy = shutil.copy(roberta, tmp_path / "copy.pt")
    finetune(run_of("MRPC", folder, Path(copy), output), [1])  # the same model
    state = torch.load(roberta, weights_only=False)
    state["extra_state"]["more"] = 1
    torch.save(state, copy)
    with pytest.raises(GlueError, match="model_sha256"):
        finetune(run_of("MRPC", folder, Path(copy), output), [1])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(GlueError, match="is not empty"):
        finetune(run_of("MRPC", folder, roberta, tmp_path / "mine"), [1])
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
    finetune(run_of("MRPC", folder, model, tmp_path / "out", max_positions=limit), [1])
    assert results(tmp_path / "out")["cut"]["valid"] == cut > 0
    said = capsys.readouterr().out
    assert f"note: {cut} of 8 examples of valid are cut to {limit} tokens" in said


def test_what_does_not_fit_is_refused_before_training(folder, model, roberta, tmp_path, data):
    output = tmp_path / "out"

    def refused(task: str, checkpoint: Path, match: str, **chosen) -> None:
        with pytest.raises((CheckpointError, GlueError), match=match):
            finetune(run_of(task, folder, checkpoint, output, **chosen), [1])

    refused("RTE", model, "there is no .*RTE/input0/train.idx; --data is the folder bin that")
    extra = (*ON_CPU, "--droput", "0.1")
    refused("MRPC", model, "^after --: unrecognized arguments: --droput 0.1$", extra=extra)
    for words in (("--seed", "7"), ("--batch-size=8",), ("--max-epoch", "1")):
        refused("MRPC", model, f"^{words[0]} after --: the command sets it", extra=words)
    refused("MRPC", roberta, "learned embeddings of 32 positions", max_positions=16)
    refused("MRPC", tmp_path / "none.pt", "there is no such file")
    arguments = ("--arch", "attention_tiny", *SHRUNK, "--no-epoch-checkpoints")
    train(data, tmp_path / "translation", *arguments)
    refused("MRPC", tmp_path / "translation" / "checkpoint_last.pt", "masked language model")
    entries = (folder / "dict.txt").read_text().splitlines()
    other = tmp_path / "bin" / "MRPC"
    shutil.copytree(folder / "bin" / "MRPC", other)
    (other / "input0" / "dict.txt").write_text("\n".join(entries[:-1]) + "\n")
    with pytest.raises(GlueError, match="types"):
        finetune(run_of("MRPC", folder, model, output)._replace(data=other.parent), [1])
    assert not output.exists()


@pytest.mark.parametrize(
    "chosen",
    [
        ("--arch", "roberta", "--dropout", "0.3", "--encoder-normalize-before"),
        (
            *("--arch", "dynamic_conv_bert_tiny", "--encoder-mixers", "dynamic,composite"),
            *("--attention-terms", "content,tisa"),
        ),
    ],
)
def test_architecture_comes_from_the_checkpoint(folder, tmp_path, chosen):
    found = read_pretrained(pretrain(folder, tmp_path, *chosen, "--max-update", "1"))
    assert found.architecture == chosen[1]
    assert {option for option in chosen[2:] if option.startswith("--")} <= set(found.options)
    assert "--attention-dropout" not in found.options  # as the architecture has it
    assert found.max_positions == POSITIONS
    asked = [*SHRUNK, *chosen[2:]]
    models = []
    for arguments in (asked, found.options):
        command = ["data", "--user-dir", str(PLUGIN), "--task", "sentence_prediction", *CLASSES]
        command += ["--arch", chosen[1], *arguments, "--required-batch-size-multiple", "1"]
        parsed = options.parse_args_and_arch(options.get_training_parser(), command)
        cfg = convert_namespace_to_omegaconf(parsed)
        cfg.task.data = str(folder / "bin" / "SST-2")
        models.append(fairseq_tasks.setup_task(cfg.task).build_model(cfg.model))
    assert str(models[0]) == str(models[1])
    assert [p.shape for p in models[0].parameters()] == [p.shape for p in models[1].parameters()]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["CoLA", "x.pt", "--seeds", "1,0x"],
            "--seeds: must be a whole number of at least 1, not '0x'",
        ),
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
