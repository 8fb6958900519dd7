"""IWSLT14 German-English, lower-cased."""

from ..command import options
from ..devices import Batch
from ..sequence_to_sequence import TOKENISED, Scoring, Translation, parallel
from . import _wu_2019

TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

RECIPE = Translation(
    title="IWSLT14 German-English",
    paper=_wu_2019.PAPER,
    figures=_wu_2019.FIGURES,
    origin=_wu_2019.PUBLIC,
    reading="tokenised by sacremoses, a port of Moses, so that a few pairs more or fewer may be "
    "kept than the 167,522 of fairseq's script",
    corpus="iwslt14",
    release=parallel(
        {"train.tags.de-en.{}": "train.{}.tags"}
        | {f"IWSLT14.{test}.de-en.{{}}.xml": "test.{}.xml" for test in TESTS},
        *("de", "en"),
    ),
    shape="iwslt_de_en",
    training=options(
        f"{_wu_2019.OBJECTIVE} --clip-norm 0 --weight-decay 0.0001 --lr-scheduler inverse_sqrt "
        "--warmup-updates 4000 --warmup-init-lr 1e-07 --lr 0.0005 --stop-min-lr 1e-09 "
        "--max-update 50000 --keep-last-epochs 10"
    ),
    batch=Batch(4000, workers=1, update_freq=1),
    average=10,
    decoding=options("--batch-size 128 --beam 4 --lenpen 1 --remove-bpe"),
    tests={
        "test": [
            Scoring("test.en", TOKENISED),
            Scoring("test.raw.en", "bleu --detokenize en --lowercase", "detokenised"),
        ]
    },
    published={"test BLEU": {"lightweight": 34.8, "dynamic": 35.2, "attention": 34.4}},
)
