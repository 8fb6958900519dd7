"""Which losses benchmarks/precisions.py takes for those of float32."""

import pytest


@pytest.fixture
def benchmark(benchmark_of):
    return benchmark_of("precisions")


def test_a_loss_beyond_the_band_or_none_is_not_within(benchmark, monkeypatch):
    losses = {"float32": 8.0, "--fp16": 8.15, "--bf16": 8.17, "--amp": None}
    losses["--memory-efficient-fp16"] = float("nan")
    monkeypatch.setattr(benchmark, "last_loss", lambda name, precision, _: losses[precision])
    arguments = benchmark.options().parse_args(["data", "--architectures", "attention_tiny"])
    arguments.device = "cuda"
    within = {row["precision"]: row["within"] for row in benchmark.rows(arguments)}
    assert within == {
        "float32": "yes", "--fp16": "yes", "--bf16": "no", "--amp": "no",
        "--memory-efficient-fp16": "no",
    }  # fmt: skip
