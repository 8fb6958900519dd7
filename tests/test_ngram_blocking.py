"""``--no-repeat-ngram-size`` of ``--task summarization``."""

import pytest
import torch

from fairseq_convattn.summarization.ngram_blocking import NGramBlocker


@pytest.mark.parametrize("size", [1, 2, 3])
def test_blocker_is_the_definition(size):
    """Against every n-gram looked up one by one; the padding and the first token do not count."""
    generator = torch.Generator().manual_seed(size)
    eos, pad, types = 2, 1, 7
    for step in range(9):
        tokens = torch.full((6, 12), pad)
        tokens[:, 0] = eos
        tokens[:, 1 : step + 1] = torch.randint(3, types, (6, step), generator=generator)
        lprobs = torch.randn(6, types, generator=generator)
        tokens[5, 1 : step + 1 : 2] = eos  # which is never blocked
        blocked = NGramBlocker(size, eos)(tokens, lprobs.clone(), 2, 3, step)
        for row in range(6):
            words = tokens[row, 1 : step + 1].tolist()
            for token in range(types):
                new = (*words, token)[step + 1 - size :] if step + 1 >= size else None
                old = [tuple(words[i : i + size]) for i in range(step - size + 1)]
                forbidden = new in old and token != eos
                expected = -float("inf") if forbidden else lprobs[row, token]
                assert blocked[row, token] == expected
