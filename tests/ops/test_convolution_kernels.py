"""What every kernel of the convolutions must do: the compiled ones on a CPU, Triton's on a GPU or
in Triton's interpreter."""

import itertools
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from convolution_cases import compare, dropconnect, inputs
from kernel_cases import assert_equal, with_gradients
from torch import Tensor

from fairseq_convattn.ops.convolution import native

try:  # before other tests import Triton otherwise
    import triton_cases
except pytest.skip.Exception:
    triton_cases = None

CASES = [
    *itertools.product(["native"], ["lightweight", "dynamic"], [7, 31]),
    *(("triton", "dynamic", 7), ("triton", "lightweight", 31)),  # by taps and by bands
]


class Case(NamedTuple):
    """Kernels, and the convolution that they are asked for."""

    kernels: ModuleType
    kind: str
    kernel_size: int
    device: str

    def inputs(self, time: int, head_dim: int, kind: str = "", **options) -> list[Tensor]:
        given = inputs(kind or self.kind, time, self.kernel_size, head_dim, **options)
        return [x.to(self.device) for x in given]


@pytest.fixture(params=CASES, ids=str)
def case(request, monkeypatch) -> Case:
    name, kind, kernel_size = request.param
    if name == "native":
        if not native.is_built():
            pytest.skip("the kernels were not compiled: no C compiler at installation")
        return Case(native, kind, kernel_size, "cpu")
    if triton_cases is None:
        pytest.skip("needs Triton, in its interpreter where there is no GPU")
    triton_cases.set_convolution_blocks(monkeypatch, 16, 16, 2)
    kernels = triton_cases.convolution_kernels()
    return Case(kernels, kind, kernel_size, triton_cases.DEVICE)


def test_any_place_of_the_first_output(case):
    places = [(20, 11, 13), (1, 3, 2), (3, 40, -5), (16, 0, 2)]
    if case.kernels is native:  # whose blocks are longer
        places += [(200, 150, 9), (200, 230, -3), (200, 230, 40)]
    for time, length, left in places:
        x, taps = case.inputs(time, 16, length=length)
        compare(case.kernels, x, taps, time, left, softmax=True, **dropconnect(taps))
    x, taps = case.inputs(20, 16)
    for left in (60, -60):  # no tap meets an input
        found = with_gradients(case.kernels.convolve, (x, taps), x, 20, left)
        assert not any(tensor.any() for tensor in found)


def test_inputs_of_any_stride(case):
    time = 65 if case.kernels is native else 18
    x, taps = case.inputs(time, 16, batch=2)
    transposed = x.transpose(0, 1).contiguous().transpose(0, 1)
    channels_first = x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    sliced = torch.cat([x, x], dim=2)[:, :, x.size(2) // 2 : -x.size(2) // 2]
    spread = torch.stack([x, x], dim=-1)[..., 0]
    sequences = [transposed, channels_first, sliced, spread, x[:1].expand(x.shape)]
    kept = dropconnect(taps)["kept"].movedim(-1, 0).contiguous().movedim(0, -1)
    kernels_first = taps.movedim(-1, 0).contiguous().movedim(0, -1)
    strided = [torch.stack([taps, taps], dim=-1)[..., 0], kernels_first]
    if case.kind == "dynamic":
        strided += [taps[:1].expand(taps.shape), taps[:1, :1, :1, :1].expand(taps.shape)]
        strided += [taps.transpose(0, 1).contiguous().transpose(0, 1)]
    for sequence, weights in itertools.zip_longest(sequences, strided, fillvalue=taps):
        assert not sequence.is_contiguous()
        compare(case.kernels, sequence, weights, time, 1, softmax=True, kept=kept, keep=0.7)


def test_gradients_of_any_stride(case):
    x, taps = (t.requires_grad_() for t in case.inputs(20, 16))
    y = case.kernels.convolve(x, taps, 20, 30, softmax=True)
    expected = torch.autograd.grad(y, (x, taps), torch.ones_like(y), retain_graph=True)
    actual = torch.autograd.grad(y.sum(), (x, taps))
    assert_equal(actual, expected)


def test_one_gradient_alone(case):
    x, taps = case.inputs(20, 16, length=50)
    grad = torch.randn(20, *x.shape[1:], device=case.device)
    both = with_gradients(case.kernels.convolve, (x, taps), grad, 20, 3, softmax=True)
    for wanted, expected in zip((x, taps), both[1:], strict=True):
        wanted.requires_grad_()
        y = case.kernels.convolve(x, taps, 20, 3, softmax=True)
        (actual,) = torch.autograd.grad(y, wanted, grad)
        assert torch.equal(actual, expected)
        wanted.requires_grad_(False)


def test_large_logits(case):
    x, taps = case.inputs(20, 16, kind="dynamic")
    for scale, tolerance in ((1e-3, 1e-5), (300, 1e-4), (1e4, 1e-2)):
        compare(case.kernels, x, scale * taps, 20, 2, tolerance=tolerance, softmax=True)
    taps[..., 1:3] = -float("inf")
    compare(case.kernels, x, taps, 20, 2, softmax=True)


def test_every_output_is_written(case, monkeypatch):
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
        assert torch.empty(3).isnan().all()
        for length, head_dim in ((3, 20), (60, 20), (60, 16)):
            x, taps = case.inputs(20, head_dim, length=length)
            compare(case.kernels, x, taps, 20, 2, softmax=True)
    finally:
        torch.use_deterministic_algorithms(False)


def test_second_derivatives_say_what_to_do(case):
    x, taps = case.inputs(5, 4)
    x.requires_grad_()
    y = case.kernels.convolve(x, taps, 5, 2, softmax=True)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="CONVATTN_IMPL=reference"):
        grad.sum().backward()
