"""SIGKILL, SIGTERM and SIGINT at random moments: nothing that was complete is lost, and the same
command ends where the undisturbed one does."""

import fcntl
import functools
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SHRUNK, generate, generation, same_weights, slow_but, train, training
from fairseq_cli import generate as generate_command
from fairseq_cli import train as train_command
from forks import fork_to
from preparation import Preparation

from fairseq_convattn.checkpoints import averaging
from fairseq_convattn.checkpoints.files import read_checkpoint
from fairseq_convattn.checkpoints.recovery import is_whole, newest_whole

pytestmark = pytest.mark.reliability

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# a function, and in how many of its first calls a process is ended
PHASES = {
    "training": ("fairseq.trainer.Trainer.train_step", 3),
    "validating": ("fairseq_cli.train.validate", 3),
    "saving": ("fairseq.checkpoint_utils.save_checkpoint", 3),
}
GENERATING = ("fairseq.tasks.fairseq_task.FairseqTask.inference_step", 4)
AVERAGING = (f"{averaging.__name__}.write_checkpoint", 1)
TRAINING = (
    *("--arch", "dynamic_conv_tiny", *SHRUNK, "--dropout", "0.3", "--max-tokens", "1000"),
    *("--update-epoch-batch-itr", "True", "--save-interval-updates", "1"),
    *("--keep-interval-updates", "2", "--keep-last-epochs", "1"),
)
faults = pytest.mark.parametrize(
    "faults", [len(SIGNALS), pytest.param(150, marks=pytest.mark.slow)]
)


def end_at_random(
    work: Callable[[], Any], phase: tuple[str, int], number: int, chance: random.Random
) -> None:
    """End a process of its own within one of its first calls of a function, or soon after.

    torch.save makes a RuntimeError of a KeyboardInterrupt, and fairseq then writes once more behind
    what it has written and goes on: a user presses again.
    """
    function, calls = phase
    process = fork_to(function, chance.randrange(calls), work)
    time.sleep(chance.uniform(0, 0.05))
    while process.is_alive():
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
        process.join(5)
        number = signal.SIGINT


@pytest.mark.parametrize("phase", slow_but(PHASES, "saving"))
@faults
def test_training_goes_on(data, tmp_path, phase, faults):
    chance, run = random.Random(f"{phase} {faults}"), tmp_path / "run"
    configuration = training(data, run, *TRAINING, "--max-update", "9999")
    endless = functools.partial(train_command.main, configuration)
    for number in range(faults):
        end_at_random(endless, PHASES[phase], SIGNALS[number % 3], chance)
        copied = ("checkpoint_last.pt", "checkpoint_best.pt")
        saved = [path for path in run.glob("checkpoint*.pt") if path.name not in copied]
        assert sum(not is_whole(path) for path in saved) <= 1  # see end_at_random
    updates = read_checkpoint(newest_whole(run))["optimizer_history"][-1]["num_updates"]
    for folder in (run, tmp_path / "whole"):
        train(data, folder, *TRAINING, "--max-update", str(updates + 3))
    ends = [folder / "checkpoint_last.pt" for folder in (run, tmp_path / "whole")]
    ended, whole = (read_checkpoint(path)["optimizer_history"][-1] for path in ends)
    assert ended == whole and same_weights(*ends)
    assert not list(run.glob("*.tmp"))


@faults
def test_generation_reads_and_changes_nothing(data, trained, tmp_path, faults):
    before, chance = trained.read_bytes(), random.Random(faults)
    given = ("--results-path", str(tmp_path), "--max-len-b", "9", "--batch-size", "4")
    work = functools.partial(generate_command.main, generation(data, trained, *given))
    for number in range(faults):
        end_at_random(work, GENERATING, SIGNALS[number % 3], chance)
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
        end_at_random(work, AVERAGING, SIGNALS[number % 3], chance)
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
