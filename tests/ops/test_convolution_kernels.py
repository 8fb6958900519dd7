"""What every kernel of the convolutions must do: the compiled ones on a CPU, Triton's on a GPU or
in Triton's interpreter. And what PyTorch's implementations must do like them."""

import itertools
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from convolution_cases import KINDS, compare, dropconnect, inputs
from kernel_cases import assert_equal, with_gradients
from torch import Tensor

from fairseq_convattn.ops.convolution import native, reference, tiled
from fairseq_convattn.ops.native import is_built

try:  # before other tests import Triton otherwise
    import triton_cases
except pytest.skip.Exception:
    triton_cases = None

CASES = [
    *itertools.product(["native"], KINDS, [7, 31]),
    *(("triton", "dynamic", 4), ("triton", "lightweight", 31)),  # by taps and by bands
]
IN_PYTORCH = [*itertools.product(["reference", "tiled"], KINDS, [7, 31])]
every_implementation = pytest.mark.parametrize(
    "case", [*IN_PYTORCH, *CASES], indirect=True, ids=str
)


class Case(NamedTuple):
    """Kernels, and the convolution that they are asked for."""

    kernels: ModuleType
    kind: str
    kernel_size: int
    device: str

    @property
    def is_triton(self) -> bool:
        return self.kernels not in (native, reference, tiled)

    def inputs(self, time: int, head_dim: int, kind: str = "", **options) -> list[Tensor]:
        given = inputs(kind or self.kind, time, self.kernel_size, head_dim, **options)
        return [x.to(self.device) for x in given]


@pytest.fixture(params=CASES, ids=str)
def case(request, monkeypatch) -> Case:
    name, kind, kernel_size = request.param
    if name in ("reference", "tiled"):
        return Case({"reference": reference, "tiled": tiled}[name], kind, kernel_size, "cpu")
    if name == "native":
        if not is_built():
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
    time = 65 if case.kernels is native else 9
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
    for scale, tolerance in ((1e-3, 1e-5), (300, 2e-4), (1e4, 1e-2)):
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


@every_implementation
def test_no_sentences(case):
    x, taps = case.inputs(5, 4, batch=0)
    for softmax in (False, True):
        convolve = case.kernels.convolve
        y, *grads = with_gradients(convolve, (x, taps), x, 5, 2, softmax=softmax)
        assert y.shape == x.shape and not any(grad.count_nonzero() for grad in grads)


@every_implementation
def test_what_is_not_finite_stays_in_its_sentence(case):
    time = 20 if case.is_triton else 100
    x, taps = case.inputs(time, 16, batch=3)
    grad, middle = torch.randn_like(x), time // 2
    x[middle - 1, 1, 3] = grad[middle, 1, 4] = float("nan")
    if case.kind == "dynamic":
        taps[middle, 1, 0, 0] = float("nan")
    for softmax in (False, True):
        found = with_gradients(case.kernels.convolve, (x, taps), grad, time, 3, softmax=softmax)
        for tensor in found[: 3 if case.kind == "dynamic" else 2]:  # sentences share other taps
            assert tensor[:, 1].isnan().any() and tensor[:, ::2].isfinite().all()


@pytest.mark.parametrize(
    "case", [c for c in CASES if c[0] == "triton" or c[2] == 7], indirect=True, ids=str
)
def test_operators_keep_pytorchs_rules(case):
    name = "convolve_triton" if case.is_triton else "convolve"
    forward, backward = (
        getattr(torch.ops.convattn, name + end).default for end in ("", "_backward")
    )
    x, taps = case.inputs(9, 4)
    for softmax, kept in ((False, None), (True, dropconnect(taps)["kept"])):
        options = kept, 9, 2, softmax, 0.7
        wanted = x.clone().requires_grad_(), taps.clone().requires_grad_()
        torch.library.opcheck(forward, (*wanted, *options))
        y, sums = forward(x, taps, *options)
        given = torch.randn_like(y), sums, x, taps, *options, [True, True]
        torch.library.opcheck(backward, given)


def test_operators_refuse_what_does_not_go_together(case):
    x, taps = case.inputs(9, 4, kind="dynamic", batch=2)
    wrong = [(x, taps, 10), (x, taps[:, :1], 9), (x[..., :7], taps, 9), (x.double(), taps, 9)]
    for x_, taps_, time in wrong:
        with pytest.raises(ValueError, match="taps"):
            case.kernels.convolve(x_, taps_, time, 2)
    with pytest.raises(ValueError, match="kept"):
        case.kernels.convolve(x, taps, 9, 2, kept=taps[:1] > 0.5)
