"""Data parallelism changes nothing: the same parameters, whoever saw the batches."""

import multiprocessing

import pytest
import torch
from conftest import PLUGIN, SHRUNK, same_weights
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq_cli import train as train_command
from free_port import free_port

from fairseq_convattn.architectures.presets import ARCHITECTURE_NAMES

DETERMINISTIC = ("--dropout", "0", "--attention-dropout", "0")


def train(data, save_dir, architecture: str, *extra: str) -> None:
    arguments = [
        *(str(data), "--user-dir", str(PLUGIN), "--save-dir", str(save_dir), "--cpu"),
        *("--arch", architecture, *SHRUNK, *DETERMINISTIC, "--seed", "1", "--num-workers", "0"),
        *(("--weight-dropout", "0") if architecture.startswith("dynamic") else ()),
        # under Adam noise would decide the sign of a step wherever a gradient is 0
        *("--optimizer", "sgd", "--lr", "0.5", "--max-tokens", "200", "--max-update", "4"),
        *("--required-batch-size-multiple", "1", "--disable-validation", "--no-progress-bar"),
        *("--ddp-backend", "legacy_ddp", *extra),
    ]
    parser = options.get_training_parser()
    configuration = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
    distributed_utils.call_main(configuration, train_command.main)


def weights(folder) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint_last.pt")["model"]


def train_together(data, save_dir, architecture: str, *extra: str) -> None:
    """Two workers, who share every update."""
    address = f"tcp://127.0.0.1:{free_port()}"
    together = (
        *("--distributed-world-size", "2", "--distributed-init-method", address),
        *("--distributed-no-spawn", "--distributed-backend", "gloo", "--update-freq", "1"),
    )
    workers = [
        multiprocessing.get_context("fork").Process(
            target=train,
            args=(data, save_dir, architecture, *together, "--distributed-rank", rank, *extra),
        )
        for rank in ("0", "1")
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]


@pytest.mark.parametrize(
    "mixer",
    ["dynamic", *(pytest.param(x, marks=pytest.mark.slow) for x in ("composite", "short_conv"))],
)
def test_two_workers_are_as_good_as_two_batches_of_one(data, tmp_path, mixer):
    architecture = ARCHITECTURE_NAMES[mixer].format("tiny")
    train_together(data, tmp_path / "two", architecture)
    train(data, tmp_path / "one", architecture, "--update-freq", "2")
    train(data, tmp_path / "other", architecture, "--update-freq", "1")
    one, two, other = (weights(tmp_path / name) for name in ("one", "two", "other"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-6)
    assert max((other[name] - one[name]).abs().max() for name in one) > 1e-3


@pytest.mark.slow
def test_two_workers_resume_bit_for_bit(data, tmp_path):
    """Each has its own float32 weights, which must not drift apart."""
    given = ("--optimizer", "convattn_adam", "--lr", "0.003", "--bf16")
    given = ("dynamic_conv_tiny", *given, "--update-epoch-batch-itr", "True")
    train_together(data, tmp_path / "whole", *given)
    train_together(data, tmp_path / "part", *given, "--max-update", "2")
    train_together(data, tmp_path / "part", *given)
    whole, part = (tmp_path / name / "checkpoint_last.pt" for name in ("whole", "part"))
    assert same_weights(whole, part)


@pytest.mark.slow
def test_another_number_of_workers_goes_on_within_an_epoch(data, tmp_path):
    """With as many batches for each update, the same data."""

    def one_worker(name: str, *extra: str) -> None:
        train(data, tmp_path / name, *architecture, "--update-freq", "2", *extra)

    architecture = ("dynamic_conv_tiny", "--update-epoch-batch-itr", "True")
    one_worker("whole")
    one_worker("fewer first", "--max-update", "3")
    train_together(data, tmp_path / "fewer first", *architecture)
    train_together(data, tmp_path / "more first", *architecture, "--max-update", "3")
    one_worker("more first")
    whole = weights(tmp_path / "whole")
    for name in ("fewer first", "more first"):
        for weight, other in zip(whole.values(), weights(tmp_path / name).values(), strict=True):
            torch.testing.assert_close(weight, other, rtol=0, atol=1e-6)
