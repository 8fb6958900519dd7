"""A worker of fairseq-train under torchrun, on CPUs as on GPUs.

    torchrun --nproc-per-node 2 --max-restarts 3 -m fairseq_convattn.launch DATA --cpu ...

takes fairseq-train's options. When a worker is killed, torchrun starts all of them again, and they
continue from the last checkpoint. fairseq's own detection of torchrun divides by the number of
GPUs. On several machines use torchrun's static rendezvous (``--node-rank``, ``--master-addr``).
"""

import os
import sys
from collections.abc import Mapping

import torch
from fairseq_cli.train import cli_main


def placement(environment: Mapping[str, str], cpu: bool) -> list[str]:
    """fairseq-train's options that say which worker this is.

    Raises:
        SystemExit: torchrun has not started it.
    """
    try:
        rank, size, local = (environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except KeyError as error:
        sys.exit(f"error: there is no {error}: torchrun -m fairseq_convattn.launch starts workers")
    return [
        *("--distributed-init-method", "env://", "--distributed-no-spawn"),
        *("--distributed-backend", "gloo" if cpu else "nccl"),
        *("--distributed-world-size", size, "--distributed-rank", rank),
        *("--device-id", "0" if cpu else local),
    ]


if __name__ == "__main__":
    sys.argv += placement(os.environ, "--cpu" in sys.argv or not torch.cuda.is_available())
    cli_main()
