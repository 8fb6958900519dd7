"""Two workers, as two machines on the loopback interface would run them."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from conftest import PLUGIN, ROOT, SHRUNK
from free_port import free_port
from torch.distributed import TCPStore

from fairseq_convattn.launch import completed, living_workers, placement

SECONDS = 300


def test_a_worker_knows_its_place():
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert "--distributed-backend nccl" in " ".join(placement(environment, cpu=False))
    assert placement(environment, cpu=False)[-2:] == ["--device-id", "1"]
    words = " ".join(placement(environment, cpu=True))
    assert "gloo --distributed-world-size 4 --distributed-rank 3 --device-id 0" in words
    with pytest.raises(SystemExit, match="error: there is no 'RANK': torchrun -m"):
        placement({}, cpu=True)


def test_what_ended_workers_left_in_the_store_is_not_read(monkeypatch):
    """torchrun's static rendezvous keeps one store for all restarts."""
    agents = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(agents.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    def start(rank: int, timeout: float = 30):
        address = f"living:?rank={rank}&world_size=2"
        return next(living_workers(address, timedelta(seconds=timeout)))[0]

    with ThreadPoolExecutor(2) as both:
        for attempt in ("first", "second"):
            early = both.submit(start, 0)
            time.sleep(0.3)  # in which it finds what the other's predecessor left
            assert not early.done(), attempt
            second, first = start(1), early.result()
            assert not first.check(["address"]), attempt
            first.set("address", attempt)
            assert second.get("address") == attempt.encode()
    with pytest.raises(TimeoutError, match="worker 0 of 2 waited 0:00:01 for the others"):
        start(0, timeout=1)
    with pytest.raises(TimeoutError, match="workers have not found each other: .*worker/2"):
        next(living_workers("living:?rank=0&world_size=3", timedelta(seconds=1)))


def test_on_cpus_the_backend_is_one_for_them_unless_another_is_given():
    where = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    given = ["DATA", "--ddp-backend", "no_c10d"]
    on_cpu, on_gpu = (completed(given, where, cpu) for cpu in (True, False))
    assert on_cpu[:5] == ["--ddp-backend", "legacy_ddp", *given]
    assert on_gpu[:3] == given


def node(number: int, port: int, data: Path, save_dir: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("torchrun")), "--nnodes", "2"),
            *("--nproc-per-node", "1", "--node-rank", str(number), "--max-restarts", "3"),
            *("--master-addr", "127.0.0.1", "--master-port", str(port)),
            *("-m", "fairseq_convattn.launch", str(data), "--user-dir", str(PLUGIN)),
            *("--arch", "dynamic_conv_tiny", *SHRUNK, "--optimizer", "adam", "--cpu"),
            *("--max-tokens", "600", "--max-update", "16", "--num-workers", "0"),
            *("--save-interval-updates", "4", "--update-epoch-batch-itr", "True"),
            *("--required-batch-size-multiple", "1", "--disable-validation"),
            *("--save-dir", str(save_dir)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train_together(data: Path, save_dir: Path, kill_one: bool) -> str:
    """What the first node says when both have ended."""
    port = free_port()
    nodes = [node(number, port, data, save_dir) for number in (0, 1)]
    try:
        if kill_one:
            end = time.monotonic() + SECONDS
            while not list(save_dir.glob("checkpoint_*_4.pt")) and time.monotonic() < end:
                time.sleep(0.05)
            children = Path(f"/proc/{nodes[1].pid}/task/{nodes[1].pid}/children").read_text()
            os.kill(int(children.split()[0]), signal.SIGKILL)
        outputs = [each.communicate(timeout=SECONDS)[0] for each in nodes]
    finally:
        for each in nodes:
            each.terminate()
            each.wait()
    assert [each.returncode for each in nodes] == [0, 0], outputs[1][-3000:]
    return outputs[0]


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_nothing_is_lost(data, tmp_path):
    train_together(data, tmp_path / "whole", kill_one=False)
    said = train_together(data, tmp_path / "killed", kill_one=True)
    assert re.search(r"Loaded checkpoint .* @ (4|8|12) updates", said)
    whole, killed = (
        torch.load(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "killed")
    )
    assert killed["optimizer_history"][-1]["num_updates"] == 16
    for name, weight in whole["model"].items():
        if not name.endswith("_float_tensor"):  # which fairseq never sets
            assert torch.equal(killed["model"][name], weight), name
