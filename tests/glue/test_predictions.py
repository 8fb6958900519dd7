"""Scores on whole dev sets and predictions of the test sets."""

import math
import shutil
import warnings
from pathlib import Path

import finetuning_cases
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from finetuning_cases import POSITIONS, files, finetuned

from fairseq_convattn.glue import __main__ as glue
from fairseq_convattn.glue import submission
from fairseq_convattn.glue.evaluation import evaluate
from fairseq_convattn.glue.metrics import score
from fairseq_convattn.glue.tasks import HIGHEST_SCORE, TASKS, GlueError

folder = finetuning_cases.folder
roberta = finetuning_cases.roberta
in_process = finetuning_cases.in_process


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
    (found,) = finetuned(task, folder, roberta, tmp_path / "out")["seeds"]
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
    seeds = finetuned(task, folder, roberta, tuned, 1, 2, data=trained_on)["seeds"]
    shutil.rmtree(trained_on)
    best = max(seeds, key=lambda one: list(one["scores"].values())[0])
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
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "results.json").write_text("{")
    (tmp_path / "text.pt").write_text("no checkpoint")
    for name, given, where, message in (
        (task, moved, output, "is there already"),
        ("MRPC", moved, last, "checkpoint.*pt is not fine-tuned on MRPC"),
        (task, roberta, ["--output", str(tmp_path / "b")], f"last.pt is not fine-tuned on {task}$"),
        (task, tmp_path / "text.pt", ["--output", str(tmp_path / "c")], "text.pt"),
        (task, tmp_path / "none.pt", ["--output", str(tmp_path / "d")], "there is no such file"),
        (task, tmp_path / "new", last, "has no results.json"),
        (task, tmp_path / "run", last, "is not an output of convattn glue finetune"),
        (task, tmp_path / "cut", last, "results.json is damaged: "),
        (task, moved, ["--output", str(tmp_path / "text.pt" / "x")], "text.pt"),
    ):
        with pytest.raises(SystemExit, match=f"^error: .*{message}"):
            glue.main(["predict", name, str(given), *data, *where])
    with pytest.raises(SystemExit):
        glue.main(["predict", task, str(moved), *data, *last, "--", "--cpu"])
    assert "predict takes no options of fairseq-train: --cpu" in capsys.readouterr().err
    shutil.copytree(folder / "bin" / task, trained_on / task)
    other = ["--output", str(tmp_path / "other")]
    dictionary = trained_on / task / "input0" / "dict.txt"
    dictionary.write_text("\n".join(dictionary.read_text().split("\n")[::-1]).strip() + "\n")
    with pytest.raises(SystemExit, match="another dictionary than the fine-tuning's.*--data"):
        glue.main(["predict", task, str(moved), *other])  # without --data: the fine-tuning's
    (moved / "settings.json").unlink()
    dictionary.write_text("\n".join(dictionary.read_text().split("\n")[9:]))
    with pytest.raises(SystemExit, match="do not go together"):
        glue.main(["predict", task, str(moved), "--data", str(trained_on), *other])
    with pytest.raises(SystemExit, match=f"there is no {tmp_path}/no/{task}; --data is the folder"):
        glue.main(["predict", task, str(moved), "--data", str(tmp_path / "no"), *other])
    for file in (trained_on / task / "input0").glob("test*"):
        file.unlink()
    with pytest.raises(SystemExit, match=f"has no test set.*{task}/test"):
        glue.main(["predict", task, str(moved), "--data", str(trained_on), *other])


def test_a_model_that_has_diverged_gets_no_scores(folder, roberta, tmp_path, in_process):
    """The first class is the largest of those that are not a number."""
    (seed,) = finetuned("MRPC", folder, roberta, tmp_path / "out", epochs=1)["seeds"]
    tuned = seed["checkpoint"]
    state = torch.load(tuned, weights_only=False)
    state["model"]["classification_heads.sentence_classification_head.out_proj.bias"] *= math.nan
    torch.save(state, tuned)
    with pytest.raises(GlueError, match="a prediction is not a number"):
        evaluate(TASKS["MRPC"], Path(tuned), folder / "bin" / "MRPC", 4)


def test_predictions_stay_within_the_scores():
    assert [submission._word(TASKS["STS-B"], made) for made in (-0.1, 0.5, 1.2)] == [
        *("0.000", "2.500", "5.000")
    ]
