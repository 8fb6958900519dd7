"""Random masks: every element is kept with the probability that is returned."""

import pytest
import torch

from fairseq_convattn.ops import lightweight_conv
from fairseq_convattn.ops.masks import kept


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1001,), (7, 33, 101)])
def test_the_share_and_the_independence_of_what_is_kept(p, shape):
    torch.manual_seed(3)
    like = torch.empty(shape, dtype=torch.float64)
    masks = [kept(like, p) for _ in range(2)]
    keep = masks[0][1]
    assert abs(keep - (1 - p)) <= 2**-17
    first, second = (mask.double().flatten() - keep for mask, _ in masks)
    assert masks[0][0].dtype == torch.bool and masks[0][0].shape == shape
    variance = keep * (1 - keep)
    assert abs(first.mean()) < 5 * (variance / first.numel()) ** 0.5
    for a, b in ((first, second), *((first[i:], first[:-i]) for i in (1, 2, 3, 4, 8))):
        assert abs((a * b).mean()) < 5 * variance / a.numel() ** 0.5


def test_probabilities_near_the_ends():
    assert kept(torch.empty(1000), 1e-9)[1] == 1 and kept(torch.empty(1000), 1e-9)[0].all()
    mask, keep = kept(torch.empty(1000), 1 - 1e-9)
    assert keep == 2**-16 and mask.sum() < 5


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 1)])
def test_small_tensors(shape):
    assert kept(torch.empty(shape), 0.5)[0].shape == shape


def test_the_seed_decides():
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(kept(torch.empty(500), 0.5)[0])
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_the_mask_is_where_the_tensor_is():
    like = torch.empty(10)
    torch.set_default_device("meta")
    try:
        assert kept(like, 0.5)[0].device == like.device
    finally:
        torch.set_default_device(None)


def test_transforms_of_torch_func_draw_masks():
    x, taps = torch.ones(2, 5, 1, 4), torch.ones(2, 1, 3) / 3

    def convolved(x, taps):
        return lightweight_conv(x, taps, causal=True, dropout_p=0.5, impl="reference")

    for given, dims in (((x, taps), (0, 0)), ((x, taps[0]), (0, None))):
        y = torch.func.vmap(convolved, in_dims=dims, randomness="different")(*given)
        assert y.shape == x.shape and y.isfinite().all()
