"""Blocks repeated n-grams in a hypothesis."""

import math

from torch import Tensor, nn


class NGramBlocker(nn.Module):
    """Forbids every token that would repeat an n-gram of the same hypothesis, but the end of the
    sentence: with diverse beams finished hypotheses go on.

    fairseq's own blocks nothing unless its CUDA extension is built (fairseq issue 5206).
    """

    def __init__(self, size: int, eos: int):
        super().__init__()
        self.size, self.eos = size, eos

    def forward(
        self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Tensor:
        """``lprobs`` with minus infinity where a token is forbidden, in place.

        Args:
            tokens: begin-of-sentence, ``step`` generated tokens, padding [hypotheses, length].
            lprobs: log-probabilities of the next token [hypotheses, types].
        """
        if step >= self.size:
            generated = tokens[:, 1 : step + 1]
            ngrams = generated.unfold(1, self.size, 1)  # [hypotheses, places, size]
            context = generated[:, step - self.size + 1 :]  # [hypotheses, size - 1]
            repeats = (ngrams[..., :-1] == context.unsqueeze(1)).all(-1)
            repeats &= ngrams[..., -1] != self.eos
            hypotheses, places = repeats.nonzero(as_tuple=True)
            lprobs[hypotheses, ngrams[hypotheses, places, -1]] = -math.inf
        return lprobs
