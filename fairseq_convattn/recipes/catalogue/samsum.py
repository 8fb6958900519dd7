"""SAMSum: summaries of messenger dialogues, at the size of one machine."""

from ..command import options
from ..devices import Batch
from ..sequence_to_sequence import Scoring, Summarization
from . import _wu_2019

RECIPE = Summarization(
    title="SAMSum",
    paper="Gliwa et al. 2019",
    figures="Gliwa et al. 2019 (arXiv 1911.12237), quoted from memory",
    unconfirmed="the published figures are quoted from memory of Gliwa et al. 2019",
    origin="ours: a small model, trained as Multi30k's; the paper's models are larger",
    reading="all of it: speakers and turns stay in the text, 8,000 pieces; 6,000 updates of 4,096 "
    "tokens, learning rate 0.003, dropout 0.3, mean of the last five epochs; summaries have at "
    "least 5 pieces and no three of them twice, beam 5; ROUGE by rouge-score, with and without "
    "stems",
    corpus="samsum",
    release={
        "train.json": "train.source.dialogues",
        "val.json": "valid.source.dialogues",
        "test.json": "test.source.dialogues",
    },
    smoke_preparation=("--pieces", "250"),
    shape="tiny",
    training=options(
        f"--share-all-embeddings --max-source-tokens 512 {_wu_2019.OBJECTIVE} --clip-norm 1.0 "
        "--lr 0.003 --lr-scheduler inverse_sqrt --warmup-updates 1000 --max-update 6000 "
        "--keep-last-epochs 5"
    ),
    batch=Batch(4096, workers=1, update_freq=1),
    average=5,
    decoding=options(
        "--max-source-tokens 512 --batch-size 64 --beam 5 --min-len 5 --max-len-b 100 "
        "--no-repeat-ngram-size 3 --remove-bpe sentencepiece"
    ),
    tests={
        "test": [
            Scoring("test.target", "rouge"),
            Scoring("test.target", "rouge --rouge-no-stem", "unstemmed"),
            Scoring("test.target", "rouge", "longest-3", baseline="test.longest3"),
        ]
    },
    published={
        "test rouge1": {"lightweight": 33.19, "dynamic": 33.79},
        "test rouge2": {"lightweight": 11.14, "dynamic": 11.19},
        "test rougeL": {"lightweight": 30.34, "dynamic": 30.41},
    },
)
