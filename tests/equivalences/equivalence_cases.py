"""What the tests of equivalences share: inputs, fixtures and comparisons, in float64.

i is the query's position, j the key's, r = j - i their distance, d the width of a head, K the taps
of a kernel. ``pytest -rP`` prints the differences.
"""

from functools import partial

import pytest
import torch

from fairseq_convattn.ops import composite_attention
from fairseq_convattn.ops.attention.api import IMPLEMENTATIONS

TOLERANCE = 1e-10
BATCH, HEADS, HEAD_DIM = 3, 3, 4
CHANNELS = HEADS * HEAD_DIM
TIME = 131
LENGTHS = (1, 2, 5, 13, TIME)  # shorter than the kernels, and longer


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


@pytest.fixture(params=[name for name in IMPLEMENTATIONS if name != "native"])  # no float64
def attend(request):
    return partial(composite_attention, impl=request.param)


@pytest.fixture(params=[False, True], ids=["centred", "causal"])
def causal(request):
    return request.param


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def queries_keys_values(queries, keys=None):
    """``[batch, heads, time, head_dim]`` each."""
    keys = keys or queries
    return (normal(BATCH, HEADS, time, HEAD_DIM) for time in (queries, keys, keys))


def padding(time):
    """One sentence without padding, one that ends with it, one that begins with it."""
    mask = torch.zeros(BATCH, time, dtype=torch.bool)
    mask[1, time - time // 3 :] = True
    mask[2, : time // 3] = True
    return mask


def visible(mask, queries, causal):
    """Which keys a query sees, ``[batch, 1, queries, keys]``."""
    keys = mask.size(1)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    return (seen.tril(keys - queries) if causal else seen) & ~mask[:, None, None]


def softmax_over(seen, scores):
    """Zeros where nothing is seen."""
    weights = scores.exp() * seen
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def distances(causal, span):
    """Those of a table's taps, r = j - i."""
    return range(-span, 1 if causal else span + 1)


def largest_difference(one, other):
    assert one.shape == other.shape
    difference = (one - other).abs().max().item()
    print(f"largest difference {difference:.1e}")
    return difference


def assert_agree(one, other):
    assert largest_difference(one, other) <= TOLERANCE


def assert_differ(one, other):
    assert largest_difference(one, other) > 0.01


def kernel_size(causal):
    return 6 if causal else 7


def lightweight_logits(causal):
    """beta: ``[heads, taps]``."""
    return normal(HEADS, kernel_size(causal))
