"""SIGKILL, SIGTERM and SIGINT at random moments: nothing that was complete is lost, and the same
command ends where the undisturbed one does.

A fault costs a fork of this process, which has imported everything, and no new Python.
"""

import fcntl
import functools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SHRUNK, generate, train
from fairseq import checkpoint_utils
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer
from fairseq_cli import train as train_command
from preparation import Preparation

from fairseq_convattn.checkpoints import averaging
from fairseq_convattn.checkpoints.files import read_checkpoint
from fairseq_convattn.checkpoints.recovery import is_whole, newest_whole

# a fork's other threads are gone, and what they held stays held: seen to hang in a long session
pytestmark = [pytest.mark.slow, pytest.mark.reliability]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PHASES = {
    "training": (Trainer, "train_step"),
    "validating": (train_command, "validate"),
    "saving": (checkpoint_utils, "save_checkpoint"),
}
TRAINING = (
    *("--arch", "dynamic_conv_tiny", *SHRUNK, "--dropout", "0.3", "--max-tokens", "1000"),
    *("--update-epoch-batch-itr", "True", "--save-interval-updates", "1"),
    *("--keep-interval-updates", "2", "--keep-last-epochs", "1"),
)
faults = pytest.mark.parametrize("faults", [5, pytest.param(150, marks=pytest.mark.slow)])


def end_at_random(
    work: Callable[[], Any], phase: tuple[Any, str], number: int, chance: random.Random
) -> None:
    """Run ``work`` in a fork; end it within one of the first calls of ``phase`` or soon after."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        _work_quietly(work, phase, chance.randrange(3), tell)
    os.close(tell)
    os.read(told, 1)
    os.close(told)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, number)
    while not _ended(child, seconds=5):
        os.kill(child, signal.SIGINT)


def _ended(child: int, seconds: float) -> bool:
    """torch.save makes a RuntimeError of a KeyboardInterrupt, and fairseq then writes once more
    behind what it has written and goes on: a user presses again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    return False


def _work_quietly(work: Callable[[], Any], phase: tuple[Any, str], calls: int, tell: int) -> None:
    owner, name = phase
    function = getattr(owner, name)
    left = iter(range(calls, -1, -1))

    @functools.wraps(function)
    def telling(*args, **kwargs):
        if next(left, None) == 0:
            os.write(tell, b"x")
        return function(*args, **kwargs)

    try:
        setattr(owner, name, telling)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.fixture(scope="module", autouse=True)
def trained(data, tmp_path_factory):
    """Its training is this process's first, which costs a second that forks then save."""
    folder = tmp_path_factory.mktemp("trained")
    train(data, folder, *TRAINING, "--max-update", "2")
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("phase", PHASES)
@faults
def test_training_goes_on(data, tmp_path, phase, faults):
    chance, run = random.Random(f"{phase} {faults}"), tmp_path / "run"
    for number in range(faults):
        endless = functools.partial(train, data, run, *TRAINING, "--max-update", "9999")
        end_at_random(endless, PHASES[phase], SIGNALS[number % 3], chance)
        copied = ("checkpoint_last.pt", "checkpoint_best.pt")
        saved = [path for path in run.glob("checkpoint*.pt") if path.name not in copied]
        assert sum(not is_whole(path) for path in saved) <= 1  # see _ended
    updates = read_checkpoint(newest_whole(run))["optimizer_history"][-1]["num_updates"]
    for folder in (run, tmp_path / "whole"):
        train(data, folder, *TRAINING, "--max-update", str(updates + 3))
    ended, whole = (
        torch.load(folder / "checkpoint_last.pt") for folder in (run, tmp_path / "whole")
    )
    assert ended["optimizer_history"][-1] == whole["optimizer_history"][-1]
    for name, weight in whole["model"].items():
        assert torch.equal(ended["model"][name], weight), name
    assert not list(run.glob("*.tmp"))


@faults
def test_generation_reads_and_changes_nothing(data, trained, tmp_path, faults):
    before, chance = trained.read_bytes(), random.Random(faults)
    given = ("--results-path", str(tmp_path), "--max-len-b", "9", "--batch-size", "4")
    for number in range(faults):
        work = functools.partial(generate, data, trained, *given)
        end_at_random(work, (FairseqTask, "inference_step"), SIGNALS[number % 3], chance)
    assert trained.read_bytes() == before
    generate(data, trained, *given)
    whole = generate(data, trained, *given[2:])
    written = (tmp_path / "generate-test.txt").read_text(encoding="utf-8")
    assert {line.split("\t")[2] for line in written.splitlines() if line.startswith("H-")} == {
        text for _, text in whole.values()
    }
    assert written.count("\nH-") == len(whole) == 13


@faults
def test_an_average_is_there_or_is_not(trained, tmp_path, faults):
    chance, output = random.Random(faults), tmp_path / "average.pt"
    work = functools.partial(averaging.average_checkpoints, [trained], output)
    for number in range(faults):
        end_at_random(work, (averaging, "write_checkpoint"), SIGNALS[number % 3], chance)
        if output.exists():
            read_checkpoint(output)
            output.unlink()
    work()
    assert read_checkpoint(output)["model"].keys() == torch.load(trained)["model"].keys()


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@faults
def test_prepared_data_are_there_or_are_not(scripts, monolingual, tmp_path, faults):
    preparation, chance = Preparation(scripts, tmp_path, monolingual), random.Random(faults)
    begun = time.monotonic()
    assert preparation.begin(tmp_path / "whole").wait() == 0
    seconds, whole = time.monotonic() - begun, content(tmp_path / "whole")
    output, unfinished = tmp_path / "out", tmp_path / "out.preparing"
    for number in range(faults):
        left = set(unfinished.glob("*.partial"))
        run = preparation.begin(output)
        time.sleep(chance.uniform(0, seconds))
        os.killpg(run.pid, SIGNALS[number % 3])
        run.wait()
        _wait_for_all_of_its_processes(unfinished / "lock")
        assert not output.exists() or content(output) == whole
        if SIGNALS[number % 3] != signal.SIGKILL:
            assert set(unfinished.glob("*.partial")) <= left
        if output.exists():
            output.rename(tmp_path / f"out{number}")
    assert preparation.begin(output).wait() == 0
    assert content(output) == whole and not unfinished.exists()


def _wait_for_all_of_its_processes(lock: Path) -> None:
    if lock.exists():
        with open(lock, "a", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
