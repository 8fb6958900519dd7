import sys

import pytest
import torch

from fairseq_convattn.ops.native import is_built

pytestmark = pytest.mark.skipif(
    not is_built(), reason="the kernels were not compiled: no C compiler at installation"
)


@pytest.fixture
def benchmark(benchmark_of):
    return benchmark_of("conv_ops")


@pytest.mark.parametrize("convolution", ["dynamic", "lightweight"])
def test_all_implementations_compute_the_same(benchmark, convolution):
    problem = benchmark.Problem(convolution, 4, 9, 2, 6, 3, "float32", 1)
    same = ("native", "tiled", "reference", *benchmark.FAIRSEQ, "loop")
    results = []
    for name in same:
        compute, tensors = benchmark.operation(name, problem)
        for tensor in tensors:
            tensor.requires_grad_()
        y = compute(*tensors)
        grad = torch.linspace(-1, 1, y.numel()).view_as(y)
        results.append((y, *torch.autograd.grad(y, tensors, grad)))
    for result in results[1:]:
        for expected, actual in zip(results[0], result, strict=True):
            torch.testing.assert_close(actual, expected)


def test_bad_options_are_refused_before_any_measurement(benchmark, tmp_path, monkeypatch, capsys):
    for flags, message in (
        (("--kernel-sizes", "0"), "must be a whole number of at least 1, not '0'"),
        (("--implementations", "cuda"), "is none of native"),
        (("--implementations", "triton"), "triton cannot compute float32 here"),
        (("--heads", "3"), "3 heads do not divide 1024 channels"),
        (("--csv", str(tmp_path / "no" / "file.csv")), "has no folder"),
    ):
        monkeypatch.setattr(sys, "argv", ["conv_ops.py", *flags])
        with pytest.raises(SystemExit) as refused:
            benchmark.main()
        printed = capsys.readouterr()
        assert refused.value.code == 2 and message in printed.err and not printed.out
