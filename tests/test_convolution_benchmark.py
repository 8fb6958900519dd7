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


@pytest.mark.parametrize(
    ("which", "sizes", "fitted"),
    [
        ("forward", (3, 7, 15, 31), (15, 31)),
        ("training", (7, 15, 31), (15, 31)),
        ("training", (7, 15), ()),
    ],
)
def test_what_a_tap_costs_is_the_slope_between_kernels_that_compute_alike(
    benchmark, which, sizes, fitted
):
    def rows(**milliseconds):
        shape = {"pass": which, "threads": 1, "convolution": "dynamic", "tokens": 64}
        for name, of_taps in milliseconds.items():
            for taps in sizes:
                row = {"implementation": name, "kernel_size": taps, "milliseconds": of_taps(taps)}
                yield shape | row

    def lines(native):
        floors = {"copy": lambda taps: 0.5, "product": lambda taps: 0.05 * taps}
        return list(benchmark.bounds(list(rows(native=native, **floors))))

    found = lines(lambda taps: 2 + 0.1 * taps if taps in fitted else 50)
    expected = [*map(str, fitted), "64", "0.1000", "50%", "2.00", "4.00"]
    assert [line.replace(",", "").split()[3:] for line in found] == [expected] * bool(fitted)
    assert all("no line" in line for line in lines(lambda taps: 9 - 0.1 * taps))


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
