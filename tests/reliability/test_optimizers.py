"""What ``convattn_adam`` saves and loads beside torch's optimizer; whole trainings are in
``test_precision.py``."""

import pytest
import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.options import get_training_parser, parse_args_and_arch
from fairseq_cli import train

from fairseq_convattn.optimizers import ConvAttnAdam, FairseqAdamConfig


def weights(*shapes, dtype=torch.float32):
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def optimizer(*groups):
    groups = [{"params": group} for group in groups]
    return ConvAttnAdam(FairseqAdamConfig(lr=[0.1], adam_betas="(0.9, 0.98)"), groups).optimizer


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_rounded_weights_of_every_group_become_what_they_were(half):
    first, second = weights((3, 5), (4,)), weights((2, 2))
    state = optimizer(first, second).state_dict()
    expected = [weight.detach().clone() for weight in (*first, *second)]
    for weight in (*first, *second):
        weight.data.copy_(weight.to(half))
    new = [[torch.nn.Parameter(x.detach().clone()) for x in group] for group in (first, second)]
    state["float32_weights"] = expected
    optimizer(*new).load_state_dict(state)
    assert all(torch.equal(x, y) for x, y in zip(sum(new, []), expected, strict=True))


@pytest.mark.parametrize("options", [["--bf16"], ["--fp16", "--fp16-no-flatten-grads"]])
def test_only_copies_of_the_weights_are_saved(options):
    """The weights themselves are in the checkpoint already."""
    parser = get_training_parser()
    adam = ("--arch", "transformer", "--optimizer", "convattn_adam", "--lr", "0.1")
    args = convert_namespace_to_omegaconf(parse_args_and_arch(parser, ["data", *adam, *options]))
    given = weights((3, 5), (4,), dtype=torch.bfloat16)
    fp16 = FP16Optimizer.build_optimizer(args, given).fp32_optimizer.optimizer
    saved = torch.cat([copy.flatten() for copy in fp16.state_dict()["float32_weights"]])
    assert torch.equal(saved, torch.cat([weight.float().flatten() for weight in given]))
    for dtype in (torch.float32, torch.bfloat16):
        own = optimizer(weights((3, 5), dtype=dtype))
        assert "float32_weights" not in own.state_dict()


def test_of_patience_the_best_loss_and_the_count_are_saved(monkeypatch):
    for name, value in {"best": 1.5, "num_runs": 2, "another": "text"}.items():
        monkeypatch.setattr(train.should_stop_early, name, value, raising=False)
    assert optimizer(weights((2,))).state_dict()["patience"] == {"best": 1.5, "num_runs": 2.0}


def test_another_number_of_weights_is_reported_by_torch():
    state = optimizer(weights((2,), (3,))).state_dict()
    with pytest.raises(ValueError, match="parameter group"):
        optimizer(weights((2,))).load_state_dict(state)
