import os
import shutil
import signal
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from fairseq_convattn.checkpoints.averaging import (
    average_checkpoints,
    best_checkpoints,
    last_checkpoints,
    main,
)
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.checkpoints.continuation import other_option
from fairseq_convattn.checkpoints.files import read_checkpoint, write_checkpoint
from fairseq_convattn.spelling import flag


def save(
    path: Path, model: dict, maximize: bool | None = False, updates: int = 7, epoch: int = 1
) -> Path:
    options = {} if maximize is None else {"maximize_best_checkpoint_metric": maximize}
    torch.save(
        {
            "args": None,
            "cfg": {"checkpoint": options, "note": path.name},
            "model": model,
            "optimizer_history": [{"num_updates": updates}],
            "extra_state": {"train_iterator": {"epoch": epoch}},
            "last_optimizer_state": {"momentum": torch.zeros(3)},
        },
        path,
    )
    return path


def save_many(directory: Path, *names: str, maximize: bool | None = False) -> None:
    for value, name in enumerate(names):
        save(directory / name, {"w": torch.tensor([float(value)])}, maximize)


def mean(paths: list[Path]) -> dict:
    output = paths[-1].with_name(f"mean of {len(list(paths[-1].parent.iterdir()))} files.pt")
    average_checkpoints(paths, output)
    return read_checkpoint(output)


def mean_of(directory: Path, values: list, dtype: torch.dtype) -> torch.Tensor:
    """The mean of checkpoints with one weight each."""
    weights = [torch.tensor(value, dtype=dtype) for value in values]
    paths = [save(directory / f"{i}.pt", {"w": weight}) for i, weight in enumerate(weights)]
    return mean(paths)["model"]["w"]


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mean_computed_by_hand(tmp_path, dtype):
    mean = mean_of(tmp_path, [[1.0, -2.0], [2.0, 4.0], [6.0, 1.0]], dtype)
    assert mean.dtype == dtype and mean.tolist() == [3.0, 1.0]


def test_half_precision_is_summed_in_single_and_double_in_double(tmp_path):
    # In float16 the sum of the first column overflows; that of the second stays at 2048.
    values = [[60000.0, 2048.0], [60000.0, 1.0], [60000.0, 0.5], [60000.0, 2.5]]
    assert mean_of(tmp_path, values, torch.float16).tolist() == [60000.0, 513.0]
    tiny = 2.0**-40
    assert mean_of(tmp_path, [1.0, 1 + 2 * tiny], torch.float64).item() == 1 + tiny


def test_everything_but_weights_is_the_last_ones_without_optimizer_state(tmp_path):
    first = save(tmp_path / "a.pt", {"w": torch.zeros(1), "steps": torch.tensor(1)}, updates=10)
    last = save(tmp_path / "b.pt", {"w": torch.zeros(1), "steps": torch.tensor(4)}, updates=20)
    state = mean([first, last])
    assert state["model"]["steps"].tolist() == 4
    assert state["cfg"]["note"] == "b.pt"
    assert state["optimizer_history"] == [{"num_updates": 20}]
    assert state["extra_state"] == {"train_iterator": {"epoch": 1}}
    assert "last_optimizer_state" not in state


def test_tied_weights_stay_tied(tmp_path):
    paths = []
    for i in range(3):
        tied = torch.rand(4, 3)
        model = {"embed": tied, "output": tied, "other": torch.rand(4, 3), "alike": tied.clone()}
        paths.append(save(tmp_path / f"{i}.pt", model))
    model = mean(paths)["model"]
    assert torch.equal(model["embed"], model["output"])
    assert model["embed"].data_ptr() == model["output"].data_ptr()
    assert len({model[name].data_ptr() for name in ("embed", "other", "alike")}) == 3


def test_weights_tied_in_the_last_checkpoint_only_are_averaged_apart(tmp_path):
    tied = torch.zeros(2)
    apart = save(tmp_path / "a.pt", {"x": torch.full((2,), 2.0), "y": torch.full((2,), 4.0)})
    model = mean([apart, save(tmp_path / "b.pt", {"x": tied, "y": tied})])["model"]
    assert model["x"].tolist() == [1.0, 1.0] and model["y"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "other, difference",
    [
        ({"a": torch.zeros(2), "c": torch.zeros(3)}, r"b is float32 \[3\] in .* and absent in"),
        (
            {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)},
            r"c is absent in .* and float32 \[1\] in",
        ),
        ({"a": torch.zeros(2), "b": torch.zeros(1, 3)}, r"b is float32 \[3\] .* float32 \[1, 3\]"),
        ({"a": torch.zeros(2).half(), "b": torch.zeros(3)}, r"a is float32 \[2\] .* float16 \[2\]"),
    ],
)
def test_other_weights_are_refused_by_name(tmp_path, other, difference):
    first = save(tmp_path / "first.pt", {"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=difference) as caught:
        mean([first, save(tmp_path / "other.pt", other)])
    assert "\n" not in str(caught.value) and "other.pt" in str(caught.value)


SWITCHES = (
    *("no_scale_embedding", "cross_self_attention", "no_token_positional_embeddings"),
    *("share_encoder_layers", "share_all_embeddings", "untie_weights_roberta"),
    "share_decoder_input_output_embed",
)
MODEL = {"weight_norm": "softmax", "encoder_kernel_sizes": [3, 3], "dropout": 0.1}
MODEL |= dict.fromkeys(SWITCHES, False)


@pytest.mark.parametrize(
    ("model", "digest", "message"),
    [
        ({"weight_norm": "tanh"}, "a", "--weight-norm softmax and .* with tanh: average"),
        ({"encoder_kernel_sizes": "3,5"}, "a", "--encoder-kernel-sizes 3,3 and .* with 3,5"),
        *(({name: True}, "a", f"{flag(name)} false and .* with true") for name in SWITCHES),
        ({}, "b", "other.pt: the target dictionary is not .*first.pt was trained with"),
        ({"dropout": 0.3, "encoder_kernel_sizes": "3"}, "a", None),
    ],
)
def test_models_of_other_functions_or_dictionaries_are_refused(tmp_path, model, digest, message):
    """All have weights of the same names and shapes."""
    paths = [tmp_path / "first.pt", tmp_path / "other.pt"]
    for path, options, target in zip(paths, ({}, model), ("a", digest), strict=True):
        digests = [f"8 {64 * side}" for side in ("a", target)]
        cfg = {"model": MODEL | options, "dictionaries": digests}
        torch.save({"cfg": cfg, "model": {"w": torch.tensor([float(len(options))])}}, path)
    if message is None:
        assert mean(paths)["cfg"]["model"]["dropout"] == 0.3
        return
    with pytest.raises(CheckpointError, match=message):
        mean(paths)


@pytest.mark.parametrize("name", ["share_all_embeddings", "adaptive_softmax_cutoff"])
def test_an_option_without_effect_makes_no_other_model(name):
    model = {name: True, "share_decoder_input_output_embed": False}
    assert other_option(model, {**model, "share_decoder_input_output_embed": True}) is None


def test_last_are_epochs_by_number(tmp_path):
    save_many(tmp_path, "checkpoint2.pt", "checkpoint10.pt", "checkpoint9.pt")
    save_many(tmp_path, "checkpoint_3_99.pt", "checkpoint11-shard0.pt", "checkpoint12.pt.tmp")
    save(tmp_path / "checkpoint_last.pt", {})
    assert names(last_checkpoints(tmp_path, 2)) == ["checkpoint9.pt", "checkpoint10.pt"]


def test_last_are_updates_where_there_are_no_epochs(tmp_path):
    save_many(tmp_path, "checkpoint_2_900.pt", "checkpoint_1_1000.pt", "checkpoint_3_20.pt")
    save_many(tmp_path, "checkpoint_best.pt", "checkpoint.best_loss_1.000.pt")
    save(tmp_path / "checkpoint_last.pt", {}, updates=1000)
    assert names(last_checkpoints(tmp_path, 2)) == ["checkpoint_2_900.pt", "checkpoint_1_1000.pt"]


@pytest.mark.parametrize("progress", [{"epoch": 9, "updates": 8}, {"epoch": 10, "updates": 7}])
@pytest.mark.parametrize(
    ("name", "choose"),
    [("checkpoint9.pt", last_checkpoints), ("checkpoint.best_loss_2.00.pt", best_checkpoints)],
)
def test_files_of_an_earlier_longer_training_are_refused(tmp_path, name, choose, progress):
    save(tmp_path / name, {}, epoch=10, updates=8)
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK damaged")
    choose(tmp_path, 1)
    save(tmp_path / "checkpoint_last.pt", {}, epoch=10, updates=8)
    choose(tmp_path, 1)
    save(tmp_path / "checkpoint_last.pt", {}, **progress)
    with pytest.raises(CheckpointError, match=f"{name} has more updates than checkpoint_last.pt"):
        choose(tmp_path, 1)


@pytest.mark.parametrize(
    "maximize, expected",
    [
        (True, ["checkpoint.best_my_bleu_9.5001.pt", "checkpoint.best_my_bleu_10.2500.pt"]),
        (False, ["checkpoint.best_my_bleu_9.5001.pt", "checkpoint.best_my_bleu_-1.0000.pt"]),
    ],
)
def test_best_in_the_direction_of_the_metric(tmp_path, maximize, expected):
    values = ("9.5001", "-1.0000", "10.2500")
    save_many(tmp_path, *(f"checkpoint.best_my_bleu_{v}.pt" for v in values), maximize=maximize)
    save_many(tmp_path, "checkpoint_best.pt", "checkpoint1.pt")
    assert names(best_checkpoints(tmp_path, 2)) == expected


def test_best_of_checkpoints_that_keep_their_options_in_a_namespace(tmp_path):
    for value in ("1.000", "2.000"):
        args = Namespace(maximize_best_checkpoint_metric=True)
        torch.save({"args": args, "model": {}}, tmp_path / f"checkpoint.best_bleu_{value}.pt")
    assert names(best_checkpoints(tmp_path, 1)) == ["checkpoint.best_bleu_2.000.pt"]


def test_best_of_unknown_direction_or_by_several_metrics_is_refused(tmp_path):
    save_many(tmp_path, "checkpoint.best_loss_1.000.pt", maximize=None)
    with pytest.raises(CheckpointError, match="whether higher values are better"):
        best_checkpoints(tmp_path, 1)
    save_many(tmp_path, "checkpoint.best_bleu_30.000.pt")
    with pytest.raises(CheckpointError, match="by bleu and by loss"):
        best_checkpoints(tmp_path, 1)


@pytest.mark.parametrize(
    ("choose", "way_out"),
    [(last_checkpoints, "no epoch ended"), (best_checkpoints, "train with --keep-best-checkpoi")],
)
def test_too_few_are_counted(tmp_path, choose, way_out):
    with pytest.raises(CheckpointError, match=f"has 0 .* fewer than 1: {way_out}"):
        choose(tmp_path, 1)
    save_many(tmp_path, "checkpoint1.pt", "checkpoint2.pt")
    save_many(tmp_path, "checkpoint.best_loss_1.000.pt", "checkpoint.best_loss_2.000.pt")
    with pytest.raises(CheckpointError, match="has 2 .* fewer than 3"):
        choose(tmp_path, 3)
    with pytest.raises(CheckpointError, match="is not a directory"):
        choose(tmp_path / "missing", 1)
    with pytest.raises(CheckpointError, match="no checkpoint to average"):
        average_checkpoints([], tmp_path / "mean.pt")


def test_command_wants_a_positive_count(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--inputs", "x", "--output", "y", "--last", "0"])
    assert caught.value.code == 2
    assert "argument --last: must be a whole number of at least 1, not '0'" in (
        capsys.readouterr().err
    )


def test_output_is_not_overwritten_and_inputs_are_not_read_for_it(tmp_path):
    path = save(tmp_path / "a.pt", {"w": torch.zeros(1)})
    before, read = path.read_bytes(), []
    with pytest.raises(FileExistsError):
        average_checkpoints([path], path, progress=read.append)
    with pytest.raises(FileNotFoundError, match="no directory"):
        average_checkpoints([path], tmp_path / "missing" / "out.pt", progress=read.append)
    assert path.read_bytes() == before and read == []


def test_a_file_that_appears_during_writing_is_not_overwritten(tmp_path, monkeypatch):
    output = tmp_path / "out.pt"
    saved = torch.save
    monkeypatch.setattr(torch, "save", lambda *a: (saved(*a), output.write_text("theirs")))
    with pytest.raises(FileExistsError):
        write_checkpoint({"model": {}}, output)
    assert output.read_text() == "theirs" and list(tmp_path.iterdir()) == [output]


def test_interrupted_writing_leaves_nothing(tmp_path):
    class Unwritable:
        def __reduce__(self):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_checkpoint({"model": {"w": torch.zeros(9)}, "x": Unwritable()}, tmp_path / "out.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_command_leaves_nothing(tmp_path, monkeypatch):
    save_many(tmp_path, "checkpoint1.pt")
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    monkeypatch.setattr(torch, "save", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            main(["--inputs", f"{tmp_path}/checkpoint1.pt", "--output", f"{tmp_path}/out.pt"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 128 + signal.SIGTERM
    assert names(list(tmp_path.iterdir())) == ["checkpoint1.pt"]


def test_epochs_that_changed_nothing_are_averaged(tmp_path):
    """As those after a learning rate that has reached zero."""
    save_many(tmp_path, "checkpoint1.pt")
    shutil.copy(tmp_path / "checkpoint1.pt", tmp_path / "checkpoint2.pt")
    main(["--inputs", str(tmp_path), "--last", "2", "--output", f"{tmp_path}/out.pt"])
    assert (tmp_path / "out.pt").is_file()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--inputs", "{}", "--last", "3"], "2 epoch checkpoints, fewer than 3; --last 2 is what"),
        (["--inputs", "{}", "{}", "--last", "1"], "one directory"),
        (["--inputs", "{}"], "is a directory; add --last N or --best N"),
        (["--inputs", "{}/missing.pt"], "no such file"),
        (["--inputs", "{}/checkpoint1.pt", "{}/copy.pt"], "has the weights of"),
        (["--inputs", "{}/checkpoint1.pt", "--output", "{}/checkpoint2.pt"], "not overwritten"),
        (["--inputs", "{}/checkpoint1.pt", "--output", "{}/a/b.pt"], "no directory"),
    ],
)
def test_command_reports_in_one_line(tmp_path, options, message):
    save_many(tmp_path, "checkpoint1.pt", "checkpoint2.pt")
    shutil.copy(tmp_path / "checkpoint1.pt", tmp_path / "copy.pt")
    options = [option.format(tmp_path) for option in options]
    with pytest.raises(SystemExit) as caught:
        main(["--output", f"{tmp_path}/out.pt", *options])
    assert str(caught.value).startswith("error: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(
    ("choice", "mean", "read"),
    [
        (["{}", "--last", "2"], 1.5, ["checkpoint2.pt", "checkpoint3.pt"]),
        (["{}", "--best", "1"], 3.0, ["checkpoint.best_loss_1.000.pt"]),
        (["{}/checkpoint1.pt"], 0.0, ["checkpoint1.pt"]),
    ],
)
def test_command_averages_what_was_chosen_and_names_it(tmp_path, capsys, choice, mean, read):
    save_many(tmp_path, *(f"checkpoint{i}.pt" for i in (1, 2, 3)), "checkpoint.best_loss_1.000.pt")
    output = tmp_path / "out.pt"
    choice = [option.format(tmp_path) for option in choice]
    main(["--output", str(output), "--inputs", *choice])
    assert read_checkpoint(output)["model"]["w"].tolist() == [mean]
    named = [f"averaging {tmp_path}/{name}" for name in read]
    printed = capsys.readouterr()
    assert printed.err.splitlines() == named and printed.out == f"wrote {output}\n"
