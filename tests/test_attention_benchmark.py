import pytest
import torch

from fairseq_convattn.ops import composite_attention


@pytest.fixture
def benchmark(benchmark_of):
    return benchmark_of("composite_attention")


@pytest.mark.parametrize("causal, tokens", [(False, 5), (True, 23)])
def test_all_implementations_compute_the_same(benchmark, causal, tokens):
    """With terms ours and the published code's way, without any ours and PyTorch's."""
    problem = benchmark.Problem(
        tokens=tokens, batch=3, heads=2, head_dim=4, causal=causal, dtype="float32", device="cpu",
        threads=1,
    )  # fmt: skip
    qkv, padding, mask = benchmark.inputs(problem)
    for terms in benchmark.TERMS:
        torch.manual_seed(1)
        ours, wanted = benchmark.build(terms, problem, qkv, padding, mask)
        torch.manual_seed(1)
        published, also_wanted = benchmark.build(f"published {terms}", problem, qkv, padding, mask)
        results = []
        for compute, tensors in ((ours, wanted), (published, also_wanted)):
            y = compute()
            grad = torch.linspace(-1, 1, y.numel()).view_as(y)
            results.append((y, *torch.autograd.grad(y, tensors, grad)))
        for x, expected in zip(*results, strict=True):
            torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-4)
    plain = composite_attention(*qkv, {"content": None}, causal=causal, padding_mask=padding)
    for name in benchmark.implementations([], problem, True):
        compute, _ = benchmark.build(name, problem, qkv, padding, mask)
        torch.testing.assert_close(compute(), plain)
