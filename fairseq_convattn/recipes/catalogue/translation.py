"""Translation."""

from dataclasses import replace
from typing import Any

from ..command import CommandOptions, options
from ..devices import Batch
from ..sequence_to_sequence import (
    DETOKENISED,
    PREPARED_HERE,
    TOKENISED,
    Scoring,
    Translation,
    parallel,
)
from . import _wu_2019

# the Google release, with its 32,000 merges
_RELEASE = {
    "train.tok.clean.bpe.32000.{}": "train.{}",
    "newstest2013.tok.bpe.32000.{}": "valid.{}",
    "newstest2014.tok.bpe.32000.{}": "test.{}",
    "newstest2014.tok.{}": "test.{}",
    "newstest2014.{}": "test.{}",
}

wmt16_en_de = Translation(
    title="WMT16 English-German, big",
    paper=_wu_2019.FIGURES,
    origin=_wu_2019.PUBLIC,
    reading=_wu_2019.START,
    corpus="wmt16_en_de",
    target_language="de",
    release=parallel(_RELEASE, "en", "de"),
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

wmt16_en_de_base = replace(
    wmt16_en_de,
    title="WMT16 English-German, base",
    paper=_wu_2019.PAPER,
    shape="wmt_en_de",
    published={},
    reading=f"{_wu_2019.START}; trained like the big models; the paper has base models only in its "
    "ablations, on newstest2013",
)

_CORPORA = (
    "training/europarl-v7.fr-en",
    "commoncrawl.fr-en",
    "un/undoc.2000.fr-en",
    "training/news-commentary-v9.fr-en",
    "giga-fren.release2.fixed",
)

wmt14_en_fr = Translation(
    title="WMT14 English-French, big",
    paper=_wu_2019.FIGURES,
    origin=f"{_wu_2019.PUBLIC}, but 5,120 tokens per GPU instead of 3,584, by an author in "
    "fairseq#1303",
    reading=f"{_wu_2019.START}; 80,000 updates: a warm-up of 10,000 and the public recipe's cosine "
    "of 70,000 (the public recipe stops at 30,000); one dictionary, because the model shares all "
    "embeddings (the public preparation makes two); tokenised by sacremoses, a port of Moses; "
    "validated on every 1,333rd training pair, as in fairseq's script, where the paper uses "
    "newstest2012 and 2013",
    corpus="wmt14_en_fr",
    target_language="fr",
    release={
        **parallel({f"{name}.{{}}": "train.{}" for name in _CORPORA}, "en", "fr"),
        **parallel({"dev/newstest2014-fren-{}.sgm": "test.{}.sgm"}, "src.en", "ref.fr"),
    },
    shape="wmt_en_fr_big",
    training=_wu_2019.training(80_000, before="--share-all-embeddings"),
    batch=replace(_wu_2019.GPUS, size=5120),
    decoding=_wu_2019.decoding(length_penalty="0.9"),
    tests={
        "newstest2014": [
            Scoring("test.fr", TOKENISED),
            Scoring("test.raw.fr", "bleu --detokenize fr", "detokenised"),
        ]
    },
    published={"newstest2014 BLEU": {"lightweight": 43.1, "dynamic": 43.2, "attention": 43.2}},
)

# corpora by the name that their files have for Chinese: zh, ch, cn
_CH = (
    "casia2015/casia2015_{}.txt",
    *("casict2011/casict-A_{}.txt", "casict2011/casict-B_{}.txt", "casict2015/casict2015_{}.txt"),
    "datum2015/datum_{}.txt",
)
_CN = ("neu2017/NEU_{}.txt", *(f"datum2017/Book{book}_{{}}.txt" for book in range(1, 21)))
_ZH = ("training/news-commentary-v12.zh-en.{}", "en-zh/UNv1.0.en-zh.{}")

wmt17_zh_en = Translation(
    title="WMT17 Chinese-English, big",
    paper=_wu_2019.PAPER,
    unconfirmed="the published figures; we could not read the paper's table",
    origin="shape of the paper; dropouts of fairseq's lightconv_wmt_zh_en_big; the rest is not "
    "published",
    reading=f"{_wu_2019.START}; schedule, batch, beam and length penalty are those of wmt16_en_de; "
    "corpora, cleaning and BPE follow Hassan et al. 2018, whom the paper cites and who publish no "
    "recipe; words are split by jieba and sacremoses; sacreBLEU scores detokenised text; an author "
    "gives a dropout of 0.25 for the attention baseline (fairseq#534): -- --dropout 0.25",
    corpus="wmt17_zh_en",
    target_language="en",
    source="with the archives of CWMT",
    release={
        **parallel(dict.fromkeys(_ZH, "train.{}"), "zh", "en"),
        **parallel(dict.fromkeys(_CH, "train.{}"), "ch", "en"),
        **parallel(dict.fromkeys(_CN, "train.{}"), "cn", "en"),
        **parallel({"dev/newsdev2017-zhen-{}.sgm": "valid.{}.sgm"}, "src.zh", "ref.en"),
        **parallel({"dev/newstest2017-zhen-{}.sgm": "test.{}.sgm"}, "src.zh", "ref.en"),
    },
    shape="wmt_zh_en_big",
    training=_wu_2019.training(updates=30_000),
    batch=_wu_2019.GPUS,
    decoding=_wu_2019.decoding(length_penalty="0.5"),
    tests={
        "newstest2017": [
            Scoring("test.raw.en", "bleu --detokenize en"),
            Scoring("test.en", TOKENISED, "tokenised"),
        ]
    },
    published={"newstest2017 BLEU": {"lightweight": 24.3, "dynamic": 24.4}},
    needs={**PREPARED_HERE, "prepare": (*PREPARED_HERE["prepare"], "jieba")},
)

TED = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

iwslt14_de_en = Translation(
    title="IWSLT14 German-English",
    paper=_wu_2019.OF_CONVOLUTIONS,
    unconfirmed="the published figure of attention; we could not read the paper's table",
    origin=_wu_2019.PUBLIC,
    reading=f"{_wu_2019.START}; tokenised by sacremoses, a port of Moses, so a few more or fewer "
    "pairs may remain than the 167,522 of fairseq's script",
    corpus="iwslt14",
    target_language="en",
    release=parallel(
        {"train.tags.de-en.{}": "train.{}.tags"}
        | {f"IWSLT14.{test}.de-en.{{}}.xml": "test.{}.xml" for test in TED},
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

iwslt14_de_en_low = replace(
    iwslt14_de_en,
    title="IWSLT14 German-English, low-resource",
    paper="Cettolo et al. 2014, the corpus",
    unconfirmed="",
    origin="ours: a small model, trained like Multi30k's",
    reading="all settings of the model and its training; the 27,517 pairs of low-resource papers, "
    "with fairseq's valid and test sets; one BPE of 10,000 merges, learned from these pairs",
    corpus="iwslt14_low",
    prepare_script=("prepare_iwslt14.sh", "--low"),
    source="with tok/train.low.de and .en, tok/valid.de and .en, and raw/IWSLT14.TED*.xml",
    release=parallel(
        {"tok/train.low.{}": "train.{}", "tok/valid.{}": "valid.{}"}
        | {f"raw/IWSLT14.{test}.de-en.{{}}.xml": "test.{}.xml" for test in TED},
        *("de", "en"),
    ),
    shape="tiny",
    training={
        **iwslt14_de_en.training,
        **options("--weight-decay 0 --lr 0.003 --warmup-updates 1000 --max-update 6000"),
    },
    batch=Batch(4096, workers=1, update_freq=1),
    published={},
)


def _short(epochs: int, updates_per_epoch: int, rate: float) -> CommandOptions:
    return options(
        f"{_wu_2019.OBJECTIVE} --lr {rate} --lr-scheduler polynomial_decay --warmup-updates 400 "
        f"--total-num-update {epochs * updates_per_epoch} --max-epoch {epochs} "
        "--keep-last-epochs 3"
    )


iwslt14_de_en_low_short = replace(
    iwslt14_de_en_low,
    title="IWSLT14 German-English, low-resource, short",
    origin="ours: a short training for a CPU, like multi30k_short",
    training=_short(epochs=12, updates_per_epoch=376, rate=0.003),
    batch=Batch(2048, workers=1, update_freq=1),
    average=3,
)

_SPLITS = {"train": "train", "val": "valid", "test_2016_flickr": "test", "test_2017_flickr": "test"}
_LIVIDWO = "README-baseline.md and the code of LividWo/Revisit-MMT"


def _multi30k_to(target: str) -> dict[str, Any]:
    """Settings by target language. The release, and so the reference, is lower-cased and
    tokenised."""
    files = {f"tok/{name}.{{}}": f"{split}.{{}}" for name, split in _SPLITS.items()}
    metric, also = f"bleu --detokenize {target}", "--detokenize-reference"
    return {
        "target_language": target,
        "release": parallel(files, "en", target),
        "tests": {
            name: [
                Scoring(f"{name}.{target}", TOKENISED),
                Scoring(f"{name}.{target}", metric, "detokenised", reference_options=also),
            ]
            for name in ("test_2016_flickr", "test_2017_flickr")
        },
    }


_SMALL = options("--share-all-embeddings --dropout 0.2")
_FRENCH = {
    "corpus": "multi30k_en_fr",
    "prepare_script": ("prepare_multi30k.sh", "--target", "fr"),
    "published": {},
    **_multi30k_to("fr"),
}

multi30k = Translation(
    title="Multi30k English-German",
    paper="Wu et al. 2021 (README-baseline.md of LividWo/Revisit-MMT)",
    origin=_LIVIDWO,
    reading="mixers other than attention, because only attention is published, and their "
    "DropConnect of 0.1",
    corpus="multi30k",
    **_multi30k_to("de"),
    shape="tiny",
    training=options(
        f"--share-all-embeddings --dropout 0.3 --attention-dropout 0.0 {_wu_2019.OBJECTIVE} "
        "--clip-norm 25 --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 2000 "
        "--max-update 8000 --patience 10 --keep-last-epochs 10"
    ),
    batch=Batch(4096, workers=1, update_freq=2),
    average=10,
    decoding=options("--beam 5 --batch-size 128 --remove-bpe"),
    published={"test_2016_flickr BLEU": {"attention": 41.02}},
)

multi30k_en_fr = replace(
    multi30k,
    title="Multi30k English-French",
    origin=f"{_LIVIDWO}, for English-German",
    reading="all settings; trained like multi30k",
    **_FRENCH,
)

multi30k_short = replace(
    multi30k,
    title="Multi30k English-German, short",
    origin=f"{_LIVIDWO}, except for our choices",
    reading="a short training for a CPU, to compare mixers, with 4 % of the tokens of the longest "
    "published training (8,000 updates of 8,192 tokens)",
    training={**_SMALL, **_short(epochs=6, updates_per_epoch=460, rate=0.002)},
    batch=Batch(1024, workers=1, update_freq=1),
    average=3,
    published={},  # the figures belong to the whole training
)

multi30k_short_en_fr = replace(
    multi30k_short,
    title="Multi30k English-French, short",
    origin=f"{_LIVIDWO}, for English-German, except for our choices",
    reading="all settings; trained like multi30k_short",
    training={**_SMALL, **_short(epochs=6, updates_per_epoch=474, rate=0.002)},
    **_FRENCH,
)
