"""R^2 of the Toeplitz fit, against tables with known answers and the formula in loops."""

import pytest
import torch

from fairseq_convattn.analysis.toeplitz import (
    diagonal_means,
    r2_by_positions,
    toeplitz_fit,
    toeplitz_r2,
    white_noise_r2,
)


def r2_in_loops(rows: list[list[float]]) -> float:
    """The definition, one entry after the other."""
    n = len(rows)
    diagonals = {}
    for i in range(n):
        for j in range(n):
            diagonals.setdefault(j - i, []).append(rows[i][j])
    mean = sum(map(sum, rows)) / n**2
    left = total = 0.0
    for i in range(n):
        for j in range(n):
            diagonal = diagonals[j - i]
            left += (rows[i][j] - sum(diagonal) / len(diagonal)) ** 2
            total += (rows[i][j] - mean) ** 2
    return 1 - left / total


def toeplitz(values: torch.Tensor) -> torch.Tensor:
    """``P_ij = values[j - i]``, entry by entry."""
    n = (len(values) + 1) // 2
    return torch.stack([values[n - 1 - i : 2 * n - 1 - i] for i in range(n)])


def test_a_toeplitz_matrix_is_its_own_fit():
    values = torch.randn(41, dtype=torch.double)
    product = toeplitz(values)
    assert product[2, 5] == values[20 + 3]  # distance j - i = 3
    torch.testing.assert_close(diagonal_means(product), values)
    torch.testing.assert_close(toeplitz_fit(product), product)
    assert toeplitz_r2(product) == pytest.approx(1)


@pytest.mark.parametrize("n", [2, 3, 17])
def test_r2_against_the_definition_in_loops(n):
    product = torch.randn(n, n, dtype=torch.double) + toeplitz(torch.randn(2 * n - 1).double())
    assert toeplitz_r2(product) == pytest.approx(r2_in_loops(product.tolist()))


@pytest.mark.parametrize("shape", [(300, 40), (20, 4)])
def test_a_table_of_white_noise_has_what_its_shape_says(shape):
    generator = torch.Generator().manual_seed(1)
    above, total = 0.0, 0.0
    for _ in range(20):
        table = torch.randn(shape, generator=generator, dtype=torch.double)
        product = table @ table.T
        spread = (product - product.mean()).square().sum().item()
        above += toeplitz_r2(product) * spread
        total += spread
    assert above / total == pytest.approx(white_noise_r2(*shape), rel=0.02)


@pytest.mark.parametrize("table", [torch.ones(1, 3), torch.full((50, 7), 0.1), torch.zeros(5, 2)])
def test_without_variance_it_is_not_defined(table):
    table = table.double()
    assert toeplitz_r2(table @ table.T) is None


def test_little_variance_on_a_large_constant():
    values = 1e-6 * torch.randn(61, dtype=torch.double)
    assert toeplitz_r2(1 + toeplitz(values)) == pytest.approx(1)


def test_half_precision_is_not_summed_as_such():
    product = 100 + torch.randn(200, 200).half()
    assert toeplitz_r2(product) == pytest.approx(toeplitz_r2(product.double()))


def test_by_positions():
    product = torch.randn(300, 300, dtype=torch.double)
    r2 = r2_by_positions(product, 128)
    assert r2["overall"] == toeplitz_r2(product)
    assert [part["positions"] for part in r2["prefixes"]] == [[0, 127], [0, 255], [0, 299]]
    assert [part["positions"] for part in r2["blocks"]] == [[0, 127], [128, 255], [256, 299]]
    for part in (*r2["prefixes"], *r2["blocks"]):
        first, last = part["positions"]
        assert part["r2"] == toeplitz_r2(product[first : last + 1, first : last + 1])


def test_a_last_block_of_one_position_is_not_defined():
    assert r2_by_positions(torch.randn(5, 5), 4)["blocks"][1] == {"positions": [4, 4], "r2": None}
