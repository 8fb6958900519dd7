import pytest
import torch

from fairseq_convattn.ops import TAP_NORMALIZATIONS, normalize_taps, taps_inside


@pytest.mark.parametrize("norm", TAP_NORMALIZATIONS)
def test_follows_its_formula(norm):
    w = torch.randn(2, 5, dtype=torch.float64)
    length = w.pow(2).sum(-1, keepdim=True).sqrt() + 1e-6
    expected = {
        "softmax": w.exp() / w.exp().sum(-1, keepdim=True),
        "l2": w / length,
        "abs_l2": w.abs() / length,
        "sigmoid": 1 / (1 + (-w).exp()),
        "tanh": (w.exp() - (-w).exp()) / (w.exp() + (-w).exp()),
        "none": w,
    }[norm]
    torch.testing.assert_close(normalize_taps(w, norm), expected)


@pytest.mark.parametrize("norm", ["softmax", "l2", "abs_l2"])
def test_taps_outside_weigh_nothing_and_the_rest_is_normalised(norm):
    w = torch.randn(4, 5, dtype=torch.float64)
    inside = torch.tensor([True, False, True, True, False])
    taps = normalize_taps(w, norm, inside)
    assert (taps[:, ~inside] == 0).all()
    torch.testing.assert_close(taps[:, inside], normalize_taps(w[:, inside], norm))


@pytest.mark.parametrize("norm", ["softmax", "l2", "abs_l2"])
def test_no_tap_inside_gives_finite_values_and_gradients(norm):
    w = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    taps = normalize_taps(w, norm, torch.zeros(3, dtype=torch.bool))
    taps.sum().backward()
    assert taps.isfinite().all() and w.grad.isfinite().all()


@pytest.mark.parametrize("norm", ["l2", "abs_l2"])
def test_large_taps_in_float16(norm):
    taps = normalize_taps(torch.full((1, 64), 1e4, dtype=torch.float16), norm)
    torch.testing.assert_close(taps, torch.full_like(taps, 0.125))


def test_softmax_runs_in_float32():
    w = torch.tensor([[1.0, 1.0078125, 3.0]], dtype=torch.bfloat16)
    expected = w.double().softmax(-1)
    assert normalize_taps(w, "softmax").dtype == torch.bfloat16
    torch.testing.assert_close(normalize_taps(w, "softmax").double(), expected, rtol=4e-3, atol=0)


def test_says_what_is_wrong():
    with pytest.raises(ValueError, match="unknown norm 'l3'"):
        normalize_taps(torch.zeros(1, 3), "l3")
    with pytest.raises(ValueError, match="'tanh' has no sum"):
        normalize_taps(torch.zeros(1, 3), "tanh", torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("causal, kernel_size", [(False, 3), (False, 5), (True, 1), (True, 4)])
def test_inside_is_where_a_tap_meets_a_real_token(causal, kernel_size):
    real = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 0]], dtype=torch.bool).t()
    time = 6 if not causal else 4  # a causal kernel may have positions before
    inside = taps_inside(real, time, kernel_size, causal=causal)
    left = kernel_size - 1 if causal else kernel_size // 2
    for b in range(2):
        for i in range(time):
            for k in range(kernel_size):
                j = 6 - time + i + k - left
                assert inside[i, b, 0, k] == (0 <= j < 6 and bool(real[j, b]))
