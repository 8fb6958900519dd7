"""Dropout of whole models."""

from argparse import Namespace

import pytest
import torch
from conftest import task_of
from fairseq.modules import FairseqDropout

from fairseq_convattn.architectures import ConvAttnModel
from fairseq_convattn.architectures.dropout import Dropout, use_fast_dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_dropped_or_rescaled_and_gradients_alike(dtype):
    torch.manual_seed(1)
    x = torch.ones(50, 3, 41, dtype=dtype, requires_grad=True)
    y = Dropout(0.25)(x)
    y.sum().backward()
    assert y.dtype == dtype and torch.equal(y, x.grad)
    dropped = y == 0
    torch.testing.assert_close(y[~dropped], torch.full_like(y[~dropped], 4 / 3))
    assert abs(dropped.float().mean() - 0.25) < 0.03


def test_nothing_is_dropped_in_evaluation_unless_asked():
    x, module = torch.ones(100), Dropout(0.5, "Layer").eval()
    assert module(x) is x
    module.make_generation_fast_("", retain_dropout=True)
    assert (module(x) == 0).any()


def test_probabilities_0_and_1():
    x = torch.ones(100)
    assert torch.equal(Dropout(0.0)(x), x) and not Dropout(1.0)(x).any()


def test_models_have_no_slow_dropout():
    net = ConvAttnModel.build_model(Namespace(dropout=0.1), task_of())
    modules = [module for module in net.modules() if isinstance(module, FairseqDropout)]
    assert modules and all(isinstance(module, Dropout) for module in modules)


def test_probability_and_name_stay():
    layer = torch.nn.ModuleDict({"inner": torch.nn.Sequential(FairseqDropout(0.3, "Layer"))})
    use_fast_dropout(layer)
    assert isinstance(layer["inner"][0], Dropout)
    assert (layer["inner"][0].p, layer["inner"][0].module_name) == (0.3, "Layer")
