"""Summarization."""

from ..command import options
from ..devices import Batch
from ..sequence_to_sequence import Scoring, Summarization
from . import _wu_2019

_SPLITS = {"train": "train", "val": "valid", "test": "test"}

cnn_dm = Summarization(
    title="CNN/DailyMail",
    paper=_wu_2019.OF_CONVOLUTIONS,
    unconfirmed="the published figures of attention; we could not read the paper's table",
    origin="shape and cuts of the paper; precision, kernels, batch of a GPU and warm-up by an "
    "author in fairseq#576, decoding in fairseq#534",
    reading=f"{_wu_2019.START}; eight GPUs; articles are not anonymised, the paper's are; they are "
    "cut to 400 subword pieces, not tokens; ROUGE is computed by rouge-score, not ROUGE 1.5.5; all "
    "dropouts are 0.1, also those of attention weights, kernels and inputs; 30,000 updates, after "
    "the warm-up with the cosine of wmt16_en_de; beam 5, summaries of 55 to 140 pieces, no 3-gram "
    "twice (the author names these limits without figures)",
    corpus="cnn_dm",
    release={f"url_lists/all_{file}.txt": f"{x}.source.stories" for file, x in _SPLITS.items()},
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

samsum = Summarization(
    title="SAMSum",
    paper="Gliwa et al. 2019 (arXiv 1911.12237), quoted from memory",
    unconfirmed="the published figures are quoted from memory of Gliwa et al. 2019",
    origin="ours: a small model, trained like Multi30k's; the paper's models are larger",
    reading="all settings of the model, its training and decoding; speakers and turns stay in the "
    "text; 8,000 pieces; ROUGE by rouge-score, with and without stemming, not by py-rouge; the "
    "baseline, longest-3, is the three longest turns of each dialogue, the longest first",
    corpus="samsum",
    release={f"{file}.json": f"{x}.source.dialogues" for file, x in _SPLITS.items()},
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
    },
)
