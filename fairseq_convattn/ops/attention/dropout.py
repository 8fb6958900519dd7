"""Which weights are dropped by all implementations but the reference: a hash of the seed and the
weight's place, so that the passes agree whatever their tiles and threads. native/attention_scores.h
with attention_rows.h, and triton_scores.py have the same function."""

from typing import NamedTuple

import torch
from torch import Tensor

_MASK = 2**32 - 1
# of the hash function by C. Wellons (hash-prospector), as numbers whose products fit 64 bits
_FIRST, _SECOND = 0x21F0AAAD, 0xD35A2D97 - 2**32


class Dropout(NamedTuple):
    """The probability of dropping a normalised weight, and the seed of the choice: one int64."""

    p: float
    seed: Tensor

    @property
    def seeds(self) -> tuple[int, int]:
        """The seed's lower and upper 32 bits."""
        seed = int(self.seed)
        return seed & _MASK, seed >> 32 & _MASK

    @property
    def threshold(self) -> int:
        """Weights whose hash, without its last bit, is below are kept."""
        return int((1 - self.p) * (2**31 - 1))

    @property
    def rescale(self) -> float:
        """By what a kept weight is multiplied."""
        return 1 / (1 - self.p)

    def factors(self, rows: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
        """0 where a weight is dropped, ``1 / (1 - p)`` elsewhere.

        Args:
            rows: numbers of rows of weights, below 2^32, int64 ``[...]``.
            columns: numbers of their columns, int64 ``[columns]``.

        Returns:
            ``[..., columns]`` in ``dtype``.
        """
        low, high = self.seeds
        first, second = (
            _hash(_hash(rows ^ a) ^ b).unsqueeze(-1) for a, b in ((low, high), (high, low))
        )
        kept = _hash((first + columns) & _MASK, second) >> 1 < self.threshold
        return kept.to(dtype).mul_(self.rescale)


def _hash(x: Tensor, key: Tensor | int = 0) -> Tensor:
    x = ((x ^ x >> 16) * _FIRST & _MASK) ^ key
    x = (x ^ x >> 15) * _SECOND & _MASK
    return x ^ x >> 15
