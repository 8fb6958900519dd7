"""Disks that are full or read-only, data that go or change, numbers that are none: each fault ends
in recovery or in one line, and the earlier checkpoints stay."""

import errno
import functools
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from conftest import SHRUNK, same_weights, slow_but, train
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.trainer import Trainer
from forks import fork
from preparation import Preparation

from fairseq_convattn import child_processes, durable, run_records
from fairseq_convattn.checkpoints import averaging, recovery
from fairseq_convattn.checkpoints.checks import CheckpointError
from fairseq_convattn.checkpoints.recovery import is_whole

pytestmark = pytest.mark.reliability

TRAINING = (
    *("--arch", "dynamic_conv_tiny", *SHRUNK, "--dropout", "0.3", "--disable-validation"),
    *("--update-epoch-batch-itr", "True", "--save-interval-updates", "2"),
    *("--no-epoch-checkpoints", "--max-update", "6"),
)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """Six updates that nothing disturbs, with a checkpoint after 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("whole")
    train(data, folder, *TRAINING)
    return folder


def assert_goes_on(data: Path, run: Path, whole: Path) -> None:
    """By the same command, to what the undisturbed run has."""
    train(data, run, *TRAINING)
    assert_same(run, whole)


def assert_same(run: Path, whole: Path) -> None:
    assert same_weights(*(folder / "checkpoint_last.pt" for folder in (run, whole)))


@pytest.fixture
def mounted(tmp_path) -> Iterator[Callable[..., Path]]:
    """A function that mounts at a new folder, until the test ends."""
    folders = []

    def mount(*arguments: str, folder: Path = tmp_path / "mounted") -> Path:
        folder.mkdir(exist_ok=True)
        run = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
        if run.returncode:
            pytest.skip(f"needs root and mount ({run.stderr.strip()})")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("size", "complete"),
    [("400k", 1), ("600k", 2), ("900k", 3)],
    ids=["within the first copy", "within the second save", "within the third save"],
)
def test_a_full_disk(data, whole, mounted, monkeypatch, size, complete):
    folder = mounted("-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_utils.time, "sleep", lambda seconds: None)  # between its attempts
        with pytest.raises((OSError, RuntimeError, AssertionError)):
            train(data, folder, *TRAINING)
    assert sum(map(is_whole, folder.glob("checkpoint*.pt"))) == complete
    subprocess.run(["mount", "-o", "remount,size=20m", str(folder)], check=True)
    assert_goes_on(data, folder, whole)


def test_room_that_comes_back_while_fairseq_tries_again(data, whole, tmp_path, monkeypatch):
    """It writes behind what its first attempt has written."""
    saves, save = iter(range(99)), torch.save

    def fails_once(state, file, **options):
        if next(saves) == 1:
            file.write(b"PK\3\4 as far as the disk had room")
            raise OSError("no space left")
        save(state, file, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_utils.time, "sleep", lambda seconds: None)
        patch.setattr(torch, "save", fails_once)
        train(data, tmp_path, *TRAINING, "--max-update", "4")
    assert_goes_on(data, tmp_path, whole)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_read_only_folder(data, whole, mounted, scripts, monolingual, tmp_path):
    before = content(whole)
    folder = mounted("--bind", "-o", "ro", str(whole))
    with pytest.raises(OSError, match="Read-only file system"):
        train(data, folder, *TRAINING)
    arguments = ["--inputs", str(folder / "checkpoint_last.pt"), "--output", str(folder / "new.pt")]
    with pytest.raises(SystemExit, match="error: .*Read-only file system") as it:
        averaging.main(arguments)
    assert "\n" not in str(it.value)
    preparation = Preparation(scripts, tmp_path, monolingual).begin(folder / "out")
    (line,) = preparation.communicate()[1].splitlines()
    assert preparation.returncode == 1 and "Read-only file system" in line
    assert content(whole) == before


def test_a_full_disk_of_an_average(whole, mounted):
    folder = mounted("-t", "tmpfs", "-o", "size=40k", "tmpfs")
    arguments = ["--inputs", str(whole / "checkpoint_last.pt"), "--output", str(folder / "new.pt")]
    with pytest.raises(SystemExit, match="error: new.pt cannot be written; is the disk full?"):
        averaging.main(arguments)
    assert not list(folder.iterdir())


def test_a_leftover_that_cannot_be_removed(data, whole, tmp_path, caplog):
    leftover = tmp_path / "checkpoint_1_2.pt.tmp"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    train(data, tmp_path, *TRAINING, "--save-interval-updates", "3")
    assert f"cannot remove '{leftover}': " in caplog.text
    assert_same(tmp_path, whole)


def at_update(number: int, action: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Do something before one of the updates of a training."""
    step, updates = Trainer.train_step, iter(range(1, 99))

    def train_step(self, *args, **kwargs):
        if next(updates) == number:
            action()
        return step(self, *args, **kwargs)

    patch.setattr(Trainer, "train_step", train_step)


def test_data_that_vanish(data, whole, tmp_path, monkeypatch):
    """A training has them open: it ends as if nothing was. The next one says what is not there."""
    copied = shutil.copytree(data, tmp_path / "data")
    at_update(3, functools.partial(shutil.rmtree, copied), monkeypatch)
    train(copied, tmp_path / "run", *TRAINING)
    assert_same(tmp_path / "run", whole)
    with pytest.raises(OSError, match=str(copied)):
        train(copied, tmp_path / "run", *TRAINING, "--max-update", "8")


@pytest.mark.parametrize("damage", slow_but(["cut", "overwritten"], "overwritten"))
def test_data_that_change(data, whole, tmp_path, damage):
    """A file that is cut ends the training by SIGBUS, numbers of no type by an IndexError."""
    copied, run = shutil.copytree(data, tmp_path / "data"), tmp_path / "run"
    file = copied / "train.src-tgt.src.bin"
    before = file.read_bytes()
    training = fork(_train_while_data_change, copied, run, file, damage)
    training.join()
    assert training.exitcode == (-signal.SIGBUS if damage == "cut" else 3)
    assert is_whole(run / "checkpoint_1_2.pt")
    file.write_bytes(before)
    assert_goes_on(copied, run, whole)


def _train_while_data_change(data: Path, run: Path, file: Path, damage: str) -> None:
    def change() -> None:
        with open(file, "r+b") as opened:
            size = file.stat().st_size
            opened.truncate(0) if damage == "cut" else opened.write(b"\x7f" * size)

    at_update(4, change, pytest.MonkeyPatch())
    try:
        train(data, run, *TRAINING)
    except IndexError:
        sys.exit(3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number(data, whole, tmp_path, monkeypatch, value):
    loss, calls = CrossEntropyCriterion.compute_loss, iter(range(1, 99))

    def compute_loss(*args, **kwargs):
        found = loss(*args, **kwargs)
        return [x * value for x in found] if next(calls) >= 5 else found

    with monkeypatch.context() as patch:
        patch.setattr(CrossEntropyCriterion, "compute_loss", compute_loss)
        with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
            train(data, tmp_path, *TRAINING)
    assert torch.load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 4
    assert_goes_on(data, tmp_path, whole)


def test_weights_that_are_no_numbers_are_named_and_the_earlier_stay(data, whole, tmp_path):
    """An update that overflows, and is saved before the next one finds it."""
    run = shutil.copytree(whole, tmp_path / "run")
    for name in ("checkpoint_2_6.pt", "checkpoint_last.pt"):
        state = torch.load(run / name)
        state["model"]["encoder.layers.0.fc1.weight"][1] = math.inf
        torch.save(state, run / name)
    with pytest.raises(CheckpointError, match=r"last\.pt: encoder\S+fc1\.weight has 16 of"):
        train(data, run, *TRAINING)
    train(data, tmp_path / "new", *TRAINING, "--restore-file", str(run / "checkpoint_1_4.pt"))
    assert_same(tmp_path / "new", whole)


def _average(inputs: Path, folder: Path) -> None:
    averaging.average_checkpoints([inputs / "checkpoint_last.pt"], folder / "average.pt")


def _restore(inputs: Path, folder: Path) -> None:
    shutil.copy(inputs / "checkpoint_1_4.pt", folder)
    recovery.restore_last(folder)


def _note(inputs: Path, folder: Path) -> None:
    run_records.write_json({"a": 1}, folder / "notes.json")


def _run(inputs: Path, folder: Path) -> None:
    child_processes.run(["echo", "a"], folder / "log", folder / "output")


def _folder(inputs: Path, folder: Path) -> None:
    with durable.appearing(folder / "analysis") as written:
        written.mkdir()
        (written / "analysis.json").write_text("{}")


def test_a_file_that_appears_at_the_last_moment_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"

    def sync(file: Path) -> None:
        if not path.exists():
            path.write_text("theirs")

    monkeypatch.setattr(durable, "sync", sync)
    with pytest.raises(FileExistsError, match="not overwritten"):
        with durable.appearing(path) as complete:
            complete.write_text("ours")
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("write", [_average, _restore, _note, _run, _folder])
def test_content_is_on_the_disk_before_its_name_and_the_name_afterwards(
    whole, tmp_path, monkeypatch, write
):
    """As a cut of the power needs it."""
    synced, replaced, events = os.fsync, os.replace, []

    def fsync(file: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{file}"))
        synced(file)

    def replace(source: Path, target: Path) -> None:
        events.append((str(source), str(target)))
        replaced(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write(whole, tmp_path)
    ((source, target),) = [event for event in events if isinstance(event, tuple)]
    inside = [path.relative_to(target) for path in Path(target).rglob("*")]
    synced_first = [*(str(Path(source, path)) for path in inside), source]
    assert events == [*synced_first, (source, target), str(tmp_path)]
    assert Path(target).exists()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_mount_that_cannot_sync_folders(tmp_path, monkeypatch, number):
    def fsync(file: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError) if number == errno.EIO else nullcontext():
        run_records.write_json({"a": 1}, tmp_path / "notes.json")
    assert (tmp_path / "notes.json").exists()


def test_prepared_data_are_on_the_disk_before_their_names(scripts, monolingual, tmp_path):
    preparation, log = Preparation(scripts, tmp_path, monolingual), tmp_path / "log"
    for command in ("sync", "mv"):
        program = shutil.which(command)
        scripts.stand_in(command, f'echo {command} "$*" >>{log}\nexec {program} "$@"')
    assert preparation.begin(tmp_path / "out").wait() == 0
    steps = [line.split() for line in log.read_text().splitlines()]
    assert [step[0] for step in steps] == ["sync", "mv", "sync", "mv", "mv"]
    for synced, moved in (steps[:2], steps[2:4]):
        partial, stage = moved[2:]
        files = (tmp_path / "out" / Path(stage).name).iterdir()
        assert set(synced[1:]) == {partial, *(f"{partial}/{path.name}" for path in files)}
