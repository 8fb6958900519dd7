"""CNN/DailyMail."""

from ..command import options
from ..sequence_to_sequence import Scoring, Summarization
from . import _wu_2019

RECIPE = Summarization(
    title="CNN/DailyMail",
    paper=_wu_2019.PAPER,
    figures=_wu_2019.FIGURES,
    origin="shape and cuts of the paper; precision, kernels, batch and warm-up by an author in "
    "fairseq#576, decoding in fairseq#534",
    reading="the articles are not anonymised as the paper's are, their 400 tokens are pieces, and "
    "rouge-score serves for ROUGE 1.5.5; dropout is 0.1, of attention "
    "weights, kernels and inputs too; 30,000 updates, of which all after the warm-up are the "
    "cosine, as in wmt16_en_de; summaries have 55 to 140 pieces and no three of them twice (the "
    "author names the limits without figures), beam 5",
    corpus="cnn_dm",
    release={
        "url_lists/all_train.txt": "train.source.stories",
        "url_lists/all_val.txt": "valid.source.stories",
        "url_lists/all_test.txt": "test.source.stories",
    },
    smoke_preparation=("--pieces", "200"),
    shape="cnn_dm",
    training=_wu_2019.training(30_000, warmup=4_000, before="--max-source-tokens 400"),
    batch=_wu_2019.GPUS,
    decoding=options(
        "--max-source-tokens 400 --batch-size 128 --beam 5 --min-len 55 --max-len-b 140 "
        "--no-repeat-ngram-size 3 --remove-bpe sentencepiece"
    ),
    tests={"test": [Scoring("test.target", "rouge --rouge-split '<q>'")]},
    published={
        "test rouge1": {"lightweight": 39.52, "dynamic": 39.84, "attention": 39.26},
        "test rouge2": {"lightweight": 15.97, "dynamic": 16.25, "attention": 15.98},
        "test rougeLsum": {"lightweight": 36.51, "dynamic": 36.73, "attention": 36.35},
    },
)
