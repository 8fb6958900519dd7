"""WMT English-German, the big models: the Google release of WMT16 with its 32,000 merges."""

from ..sequence_to_sequence import DETOKENISED, TOKENISED, Scoring, Translation, parallel
from . import _wu_2019

RELEASE = {
    "train.tok.clean.bpe.32000.{}": "train.{}",
    "newstest2013.tok.bpe.32000.{}": "valid.{}",
    "newstest2014.tok.bpe.32000.{}": "test.{}",
    "newstest2014.tok.{}": "test.{}",
    "newstest2014.{}": "test.{}",
}

RECIPE = Translation(
    title="WMT16 English-German, big",
    paper=_wu_2019.PAPER,
    figures=_wu_2019.FIGURES,
    origin=_wu_2019.PUBLIC,
    corpus="wmt16_en_de",
    release=parallel(RELEASE, "en", "de"),
    shape="wmt_en_de_big",
    training=_wu_2019.training(30_000, before="--share-all-embeddings"),
    batch=_wu_2019.GPUS,
    decoding=_wu_2019.decoding(length_penalty="0.5"),
    tests={
        "newstest2014": [
            Scoring("newstest2014.tok.de", f"{TOKENISED} --compound-split"),
            Scoring("newstest2014.de", "bleu --detokenize de", "detokenised"),
        ]
    },
    published={"newstest2014 BLEU": {"lightweight": 28.9, "dynamic": 29.7, "attention": 29.3}},
    needs=DETOKENISED,
)
