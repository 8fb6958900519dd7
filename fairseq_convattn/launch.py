"""A worker of fairseq-train under torchrun, on CPUs as on GPUs.

    torchrun --nproc-per-node 2 --max-restarts 3 -m fairseq_convattn.launch DATA --cpu ...

takes fairseq-train's options. When a worker is killed, torchrun starts all of them again, and they
continue from the last checkpoint. fairseq's own detection of torchrun divides by the number of
GPUs. On several machines use torchrun's static rendezvous (``--node-rank``, ``--master-addr``):
its store outlives the workers, and what those of an earlier start left in it is not read.
"""

import hashlib
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta

import torch
from fairseq_cli.train import cli_main
from torch.distributed import DistError, PrefixStore, Store, register_rendezvous_handler, rendezvous

from . import programs

_SCHEME = "living"


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
        *("--distributed-init-method", f"{_SCHEME}://", "--distributed-no-spawn"),
        *("--distributed-backend", "gloo" if cpu else "nccl"),
        *("--distributed-world-size", size, "--distributed-rank", rank),
        *("--device-id", "0" if cpu else local),
    ]


def living_workers(url: str, timeout: timedelta, **_: object) -> Iterator[tuple[Store, int, int]]:
    """torch's ``env://``, within a prefix of the store that only the workers now alive know.

    Raises:
        TimeoutError: not all workers arrived.
    """
    try:
        address = f"env{url.removeprefix(_SCHEME)}"
        store, rank, size = next(rendezvous(address, timeout=timeout))
        store.set(f"worker/{rank}", uuid.uuid4().hex)
        group = _group(store, rank, size, timeout)
    except DistError as error:
        raise TimeoutError(f"the workers have not found each other: {error}") from error
    yield PrefixStore(group, store), rank, size


def _group(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """A prefix of the store that all present workers agree on, and no earlier ones."""
    end = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < end:
        names = b"".join(store.get(f"worker/{other}") for other in range(size))
        group = hashlib.sha256(names).hexdigest()
        store.set(f"{group}/{rank}", "here")
        if store.check([f"{group}/{other}" for other in range(size)]):
            return group
        time.sleep(0.1)  # another has ended and has not been started again yet
    raise TimeoutError(f"worker {rank} of {size} waited {timeout} for the others")


register_rendezvous_handler(_SCHEME, living_workers)


def completed(given: list[str], environment: Mapping[str, str], cpu: bool) -> list[str]:
    """All options of a worker. On CPUs fairseq's default backend would name a GPU; what is given
    comes later and counts.

    Raises:
        SystemExit: torchrun has not started it.
    """
    backend = ["--ddp-backend", "legacy_ddp"] if cpu else []
    return [*backend, *given, *placement(environment, cpu)]


if __name__ == "__main__":
    on_cpu = "--cpu" in sys.argv or not torch.cuda.is_available()
    sys.argv = ["fairseq-train", *completed(sys.argv[1:], os.environ, on_cpu)]
    programs.install(sys.argv)
    cli_main()
