"""IWSLT14 German-English with a sixth of the training set, at the size of one machine."""

from dataclasses import replace

from ..command import options
from ..devices import Batch
from ..sequence_to_sequence import parallel
from . import iwslt14_de_en

RECIPE = replace(
    iwslt14_de_en.RECIPE,
    title="IWSLT14 German-English, low-resource",
    figures="",
    origin="ours: a small model, trained as Multi30k's",
    reading="all of it: 27,517 pairs, as low-resource papers publish them, and fairseq's valid and "
    "test; one BPE of 10,000 merges over these pairs; 6,000 updates of 4,096 tokens, learning rate "
    "0.003, dropout 0.3, of attention weights and kernels 0.1, mean of the last ten epochs",
    corpus="iwslt14_low",
    prepare_script=("prepare_iwslt14.sh", "--low"),
    source="with tok/train.low.de and .en, tok/valid.de and .en, and raw/IWSLT14.TED*.xml",
    release=parallel(
        {"tok/train.low.{}": "train.{}", "tok/valid.{}": "valid.{}"}
        | {f"raw/IWSLT14.{test}.de-en.{{}}.xml": "test.{}.xml" for test in iwslt14_de_en.TESTS},
        *("de", "en"),
    ),
    shape="tiny",
    training={
        **iwslt14_de_en.RECIPE.training,
        **options("--weight-decay 0 --lr 0.003 --warmup-updates 1000 --max-update 6000"),
    },
    batch=Batch(4096, workers=1, update_freq=1),
    published={},
)
