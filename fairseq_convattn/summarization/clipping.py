"""Texts cut to a number of tokens, with a prefix."""

from collections.abc import Sequence

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset
from torch import Tensor


def clip(tokens: Tensor, max_tokens: int, prefix: Tensor | None = None) -> Tensor:
    """Keep the first ``max_tokens`` tokens of a text and its last one, end-of-sentence.

    Args:
        tokens: [length].
        prefix: tokens to put before the text [prefix length].
    """
    if len(tokens) > max_tokens + 1:
        tokens = torch.cat([tokens[:max_tokens], tokens[-1:]])
    return tokens if prefix is None else torch.cat([prefix.to(tokens), tokens])


class ClippedDataset(BaseWrapperDataset):
    """Texts cut by :func:`clip`, with exact sizes.

    Args:
        prefix: tokens to put before every text [prefix length].
        words: what these tokens are.
    """

    def __init__(
        self,
        dataset: FairseqDataset,
        max_tokens: int,
        prefix: Tensor | None = None,
        words: Sequence[str] = (),
    ):
        super().__init__(dataset)
        self.max_tokens = max_tokens
        self.prefix = prefix
        self._words = words
        added = 0 if prefix is None else len(prefix)
        self._sizes = np.minimum(dataset.sizes, max_tokens + 1) + added

    def __getitem__(self, index: int) -> Tensor:
        return clip(self.dataset[index], self.max_tokens, self.prefix)

    def get_original_text(self, index: int) -> str:
        """The words of the tokens, with ``--dataset-impl raw``; ``--replace-unk`` needs them."""
        words = self.dataset.get_original_text(index).split()
        return " ".join([*self._words, *words[: self.max_tokens]])

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes

    def size(self, index: int) -> int:
        return self._sizes[index]

    num_tokens = size


def encode_prefix(prefix: str | None, dictionary: Dictionary) -> Tensor:
    """The tokens of ``--source-prefix`` [length]; [0] without a prefix.

    Raises:
        ValueError: the dictionary lacks a token.
    """
    words = (prefix or "").split()
    numbers = [dictionary.index(word) for word in words]
    unknown = [word for word, n in zip(words, numbers, strict=True) if n == dictionary.unk()]
    if unknown:
        raise ValueError(
            f"--source-prefix: the source dictionary lacks {' '.join(unknown)}; write the prefix "
            "as the data is, in tokens (subwords) with blanks between"
        )
    return torch.tensor(numbers, dtype=torch.long)
