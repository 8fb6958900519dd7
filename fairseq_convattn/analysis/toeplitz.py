"""How translation-invariant a table of scores is (Wennberg and Henter 2021, section 2)."""

import torch
from torch import Tensor

# Less relative variation than this is rounding, not structure.
_ROUNDING = 1e-12


def toeplitz_fit(product: Tensor) -> Tensor:
    """The Toeplitz matrix nearest to ``product`` in least squares, which has the mean of each
    diagonal; both ``[n, n]``."""
    n = product.size(0)
    positions = torch.arange(n)
    diagonals = positions - positions.unsqueeze(1) + n - 1  # j - i + n - 1, [n, n]
    places = diagonals.flatten()
    sums = product.new_zeros(2 * n - 1).index_add_(0, places, product.flatten())
    return (sums / places.bincount())[diagonals]


def toeplitz_r2(product: Tensor) -> float | None:
    """``1 - |P - fit|^2 / |P - mean(P)|^2``: 1 where P depends on the distance alone.

    Args:
        product: P, ``[n, n]``.

    Returns:
        R^2, from 0 to 1, or None where P is constant, which leaves nothing to explain.
    """
    product = product.double()
    total = (product - product.mean()).square().sum()
    if total <= _ROUNDING**2 * product.square().sum():
        return None
    return 1 - ((product - toeplitz_fit(product)).square().sum() / total).item()


def r2_by_positions(product: Tensor, block: int) -> dict:
    """R^2 over all positions, over the first ones, and over consecutive blocks of them.

    Args:
        product: ``[n, n]``.
        block: positions in a block; the last block may have fewer.

    Returns:
        ``overall``: R^2 of the whole. ``prefixes``: R^2 of the first positions, up to every
        multiple of ``block``; ``blocks``: R^2 from one multiple of ``block`` to the next; each
        a list of ``{"positions": [first, last], "r2": R^2}``.
    """
    n = product.size(0)
    cuts = [(start, min(start + block, n)) for start in range(0, n, block)]
    return {
        "overall": toeplitz_r2(product),
        "prefixes": [_part(product, 0, end) for _, end in cuts],
        "blocks": [_part(product, *cut) for cut in cuts],
    }


def white_noise_r2(positions: int, width: int) -> float:
    """R^2 to expect of ``E E^T`` where E is white noise, as a table is before training.

    It is not 0: the diagonal, the squared length of every row, is far above the rest. The
    expected sums of squares that R^2 divides have the ratio
    ``(width + 2) / (width + 2 + positions)``.

    Args:
        positions, width: the shape of E.
    """
    return (width + 2) / (width + 2 + positions)


def _part(product: Tensor, start: int, end: int) -> dict:
    return {"positions": [start, end - 1], "r2": toeplitz_r2(product[start:end, start:end])}
