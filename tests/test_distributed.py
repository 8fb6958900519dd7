"""Two workers on one machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PLUGIN, ROOT, SHRUNK
from free_port import free_port


def train_together(data, save_dir, updates) -> str:
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [
                str(Path(sys.executable).with_name("fairseq-train")),
                *(str(data), "--user-dir", str(PLUGIN), "--save-dir", str(save_dir)),
                *("--arch", "dynamic_conv_tiny", *SHRUNK, "--optimizer", "adam", "--cpu"),
                *("--max-tokens", "600", "--max-update", str(updates), "--num-workers", "0"),
                *("--distributed-world-size", "2", "--distributed-rank", str(rank)),
                *("--distributed-init-method", f"tcp://127.0.0.1:{port}"),
                *("--distributed-no-spawn", "--distributed-backend", "gloo"),
                *("--ddp-backend", "legacy_ddp", "--required-batch-size-multiple", "1"),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0], outputs[1][-3000:]
    return outputs[0]


@pytest.mark.slow
@pytest.mark.ci
def test_resumes_under_data_parallelism(data, tmp_path):
    """The first worker sends the checkpoint to the other, which loads it safely too."""
    train_together(data, tmp_path, updates=2)
    assert "@ 2 updates" in train_together(data, tmp_path, updates=4)
    history = torch.load(tmp_path / "checkpoint_last.pt")["optimizer_history"]
    assert history[-1]["num_updates"] == 4
