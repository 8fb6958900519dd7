"""A short convolution's single position in decoding, against the sum over its window."""

import pytest
import torch

from fairseq_convattn.ops.short_convolution.step import step

BATCH = 2


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("residual", [True, False])
def test_a_step_continues_from_any_tail(before, residual):
    kernels, x = torch.randn(4, BATCH, 6), torch.randn(1, BATCH, 6)
    tail = torch.randn(before, BATCH, 6, dtype=torch.float64)
    window = torch.cat([tail.float(), x])[-4:]
    y, following = step(x, kernels, tail, residual)
    expected = (window * kernels[-len(window) :]).sum(0, keepdim=True) + x * residual
    assert y.dtype == following.dtype == torch.float32
    torch.testing.assert_close(y, expected)
    assert torch.equal(following, window[-3:])
