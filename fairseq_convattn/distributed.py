"""fairseq-train as a worker of torchrun, on CPUs and on GPUs, on one machine or several.

    torchrun --nproc-per-node 2 -m fairseq_convattn.distributed DATA --arch dynamic_conv_tiny ...
    torchrun --nnodes 2 --node-rank 0 --master-addr HOST --master-port 29500 --nproc-per-node 8 \\
        --max-restarts 3 -m fairseq_convattn.distributed DATA --arch dynamic_conv_wmt_en_de_big ...

The options are fairseq-train's. Rank, world size, device and backend come from torchrun.
After a worker was killed, ``--max-restarts`` starts all of them again, and training resumes
from the last checkpoint. On several machines name the first one with ``--master-addr``, as
above: with torchrun's other rendezvous, ``--rdzv-backend c10d``, workers on CPUs do not find
each other again after a kill.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def worker_options(
    arguments: Sequence[str], environment: Mapping[str, str], gpus: int
) -> list[str]:
    """The options that make fairseq-train this worker.

    fairseq reads torchrun's variables by itself, but divides by the number of GPUs.

    Args:
        arguments: the user's options, which win.
        environment: torchrun's variables.
        gpus: of this machine.

    Raises:
        ValueError: torchrun's variables are missing, or it started more workers than GPUs.
    """
    missing = [name for name in VARIABLES if name not in environment]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} not set: start it by "
            "torchrun --nproc-per-node N -m fairseq_convattn.distributed DATA ..."
        )
    on_cpu = "--cpu" in arguments or gpus == 0
    local_rank = int(environment["LOCAL_RANK"])
    if not on_cpu and local_rank >= gpus:
        raise ValueError(
            f"--nproc-per-node: worker {local_rank} has no GPU of its own, this machine has {gpus} "
            "(--cpu trains on CPUs)"
        )
    defaults = {
        "--user-dir": str(Path(__file__).parent),
        "--distributed-backend": "gloo" if on_cpu else "nccl",
        "--ddp-backend": "legacy_ddp",
    }
    given = {argument.partition("=")[0] for argument in arguments}
    options = [part for name in defaults.keys() - given for part in (name, defaults[name])]
    if on_cpu and "--cpu" not in given:
        options.append("--cpu")
    return [
        *options,
        *("--distributed-world-size", environment["WORLD_SIZE"]),
        *("--distributed-rank", environment["RANK"]),
        *("--distributed-init-method", "env://"),
        *("--device-id", "0" if on_cpu else str(local_rank)),
        "--distributed-no-spawn",
    ]


def main() -> None:
    """Run fairseq-train with ``sys.argv`` as the worker that torchrun's variables describe."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    try:
        options = worker_options(sys.argv[1:], os.environ, torch.cuda.device_count())
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    logging.getLogger().handlers.clear()  # so that fairseq-train's own format holds
    from fairseq_cli.train import cli_main

    sys.argv += options
    cli_main()


if __name__ == "__main__":
    main()
