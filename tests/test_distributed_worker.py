"""``python -m fairseq_convattn.distributed`` under torchrun."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SHRUNK
from free_port import free_port

from fairseq_convattn.distributed import worker_options

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
MODULE = "fairseq_convattn.distributed"


def value(options: list[str], name: str) -> str:
    assert options.count(name) == 1
    return options[options.index(name) + 1]


def test_a_worker_without_gpus_trains_on_the_cpu():
    options = worker_options(["data"], TORCHRUN, gpus=0)
    assert value(options, "--distributed-backend") == "gloo"
    assert value(options, "--distributed-rank") == "3"
    assert value(options, "--distributed-world-size") == "4"
    assert "--cpu" in options


def test_a_worker_takes_the_gpu_of_its_number_on_its_machine():
    options = worker_options(["data"], TORCHRUN, gpus=2)
    assert value(options, "--distributed-backend") == "nccl"
    assert value(options, "--device-id") == "1"
    assert "--cpu" not in options


def test_what_the_user_gives_is_not_given_twice():
    given = ["data", "--cpu", "--ddp-backend=pytorch_ddp", "--distributed-backend", "mpi"]
    options = worker_options(given, TORCHRUN, gpus=2)
    assert not {"--cpu", "--ddp-backend", "--distributed-backend"} & set(options)


def test_more_workers_than_gpus_are_refused():
    with pytest.raises(ValueError, match="--nproc-per-node"):
        worker_options(["data"], TORCHRUN, gpus=1)


def test_without_torchrun_it_says_how_to_start():
    with pytest.raises(ValueError, match="RANK.*torchrun"):
        worker_options(["data"], {}, gpus=0)


def command(node: int, port: int, data: Path, save_dir: Path) -> list[str]:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    return [
        *(torchrun, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
        *("--master-addr", "127.0.0.1", "--master-port", str(port), "--max-restarts", "2"),
        *("-m", MODULE, str(data), "--save-dir", str(save_dir), "--cpu"),
        *("--arch", "dynamic_conv_tiny", *SHRUNK, "--optimizer", "adam", "--lr", "0.003"),
        *("--max-tokens", "150", "--max-update", "30", "--num-workers", "0"),
        *("--required-batch-size-multiple", "1", "--update-epoch-batch-itr", "True"),
        *("--save-interval-updates", "5", "--disable-validation"),
        *("--log-format", "simple", "--log-interval", "1"),
    ]


def workers(save_dir: Path) -> list[int]:
    """Process ids of the trainings that write to ``save_dir``, without torchrun's own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(save_dir).encode() in words and b"--max-restarts" not in words:
            found.append(int(folder.name))
    return found


def train_on_two_nodes(data: Path, save_dir: Path, kill_at: int | None = None) -> str:
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = save_dir.with_suffix(".log")
    with log.open("w") as output:
        nodes = [
            subprocess.Popen(
                command(node, port, data, save_dir),
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for node in (0, 1)
        ]
    try:
        while kill_at is not None and all(node.poll() is None for node in nodes):
            if f"num_updates={kill_at}," in log.read_text():
                os.kill(max(workers(save_dir)), signal.SIGKILL)
                break
            time.sleep(0.1)
        codes = [node.wait(timeout=300) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert codes == [0, 0], log.read_text()[-3000:]
    return log.read_text()


@pytest.mark.slow
def test_two_nodes_resume_after_a_killed_worker_as_if_nothing_had_happened(data, tmp_path):
    train_on_two_nodes(data, tmp_path / "whole")
    log = train_on_two_nodes(data, tmp_path / "killed", kill_at=12)
    assert "@ 10 updates" in log
    expected, actual = (
        torch.load(tmp_path / run / "checkpoint_last.pt") for run in ("whole", "killed")
    )
    assert actual["optimizer_history"][-1]["num_updates"] == 30
    for name, weight in expected["model"].items():
        if not name.endswith("_float_tensor"):  # fairseq leaves it uninitialised
            assert torch.equal(actual["model"][name], weight), name
