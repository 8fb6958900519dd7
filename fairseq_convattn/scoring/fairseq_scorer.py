"""``--scoring rouge`` for fairseq-generate."""

import logging
from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import SCORER_REGISTRY, BaseScorer, register_scorer

from .checks import hypothesis_warnings, mask_unknowns, reference_warnings
from .rouge import (
    NAMES,
    RougeSettings,
    corpus_scores,
    rouge_warnings,
    sentence_scores,
    signature,
)

logger = logging.getLogger(__name__)


@dataclass
class RougeScorerConfig(FairseqDataclass):
    rouge_no_stem: bool = field(
        default=False,
        metadata={"help": "compare words as they are, not by their Porter stems"},
    )
    rouge_split: str = field(
        default="newline",
        metadata={
            "help": "where a sentence begins for ROUGE-Lsum: newline (never, as fairseq's texts "
            "are lines), punctuation (after . ! ? and a space) or a marker that the data has "
            "between sentences, such as <q>"
        },
    )


class RougeScorer(BaseScorer):
    """ROUGE of what fairseq-generate prints as T- (target) and D- (hypothesis) lines.

    A target's ``<<unk>>`` matches nothing.

    Raises:
        ImportError: rouge-score is not installed.
        ValueError: ``--rouge-split`` is none of the three.
    """

    def __init__(self, cfg: RougeScorerConfig):
        super().__init__(cfg)
        try:
            self.settings = RougeSettings(stem=not cfg.rouge_no_stem, split=cfg.rouge_split)
        except ValueError as error:
            raise ValueError(f"--rouge-split: {error}") from None
        self.signature = signature(1, self.settings)
        self.scores: list[dict] = []

    def add_string(self, ref: str, pred: str) -> None:
        super().add_string(ref, pred)
        self.scores.append(sentence_scores(pred, [mask_unknowns(ref)], self.settings))

    def score(self) -> float:
        """F1 of ROUGE-Lsum in percent, which papers call ROUGE-L."""
        return corpus_scores(self.scores)["rougeLsum"].fmeasure

    def result_string(self) -> str:
        for line in (
            *hypothesis_warnings(self.pred),
            *reference_warnings(self.ref),
            *rouge_warnings(self.ref, self.settings),
        ):
            logger.warning(line)
        scores = corpus_scores(self.scores).items()
        parts = [f"{NAMES[name]} F1 = {score}" for name, score in scores]
        return "; ".join((*parts, f"ROUGE|{self.signature}"))


if "rouge" in SCORER_REGISTRY:
    raise ImportError("another plugin has registered a fairseq scorer named 'rouge'")
register_scorer("rouge", dataclass=RougeScorerConfig)(RougeScorer)
