"""R^2 of the Toeplitz fit, against tables with known answers and the formula in loops."""

import pytest
import torch

from fairseq_convattn.analysis.toeplitz import (
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
    torch.testing.assert_close(toeplitz_fit(product), product)
    assert toeplitz_r2(product) == pytest.approx(1)


def test_r2_against_the_definition_in_loops():
    product = torch.randn(17, 17, dtype=torch.double) + toeplitz(torch.randn(33).double())
    assert toeplitz_r2(product) == pytest.approx(r2_in_loops(product.tolist()))


def test_a_table_of_white_noise_has_what_its_shape_says():
    generator = torch.Generator().manual_seed(1)
    above, total = 0.0, 0.0
    for _ in range(20):
        table = torch.randn(300, 40, generator=generator, dtype=torch.double)
        product = table @ table.T
        spread = (product - product.mean()).square().sum().item()
        above += toeplitz_r2(product) * spread
        total += spread
    assert above / total == pytest.approx(white_noise_r2(300, 40), rel=0.02)


def test_without_variance_it_is_not_defined():
    for table in (torch.full((50, 7), 0.1), torch.zeros(5, 2)):
        assert toeplitz_r2(table.double() @ table.double().T) is None


def test_little_variance_on_a_large_constant():
    values = 1e-6 * torch.randn(61, dtype=torch.double)
    assert toeplitz_r2(1 + toeplitz(values)) == pytest.approx(1)


def test_half_precision_is_not_summed_as_such():
    product = 100 + torch.randn(200, 200).half()
    assert toeplitz_r2(product) == pytest.approx(toeplitz_r2(product.double()))


def test_by_positions():
    product = torch.randn(257, 257, dtype=torch.double)
    r2 = r2_by_positions(product, 128)
    assert r2["overall"] == toeplitz_r2(product)
    assert [part["positions"] for part in r2["prefixes"]] == [[0, 127], [0, 255], [0, 256]]
    assert [part["positions"] for part in r2["blocks"]] == [[0, 127], [128, 255], [256, 256]]
    assert r2["blocks"][2]["r2"] is None
    for part in (*r2["prefixes"], *r2["blocks"]):
        first, last = part["positions"]
        assert part["r2"] == toeplitz_r2(product[first : last + 1, first : last + 1])
