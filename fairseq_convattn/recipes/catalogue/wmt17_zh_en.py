"""WMT17 Chinese-English, the big models."""

from ..sequence_to_sequence import PREPARED_HERE, TOKENISED, Scoring, Translation, parallel
from . import _wu_2019

# the corpora of CWMT, but for the two that call Chinese cn
CWMT = (
    "casia2015/casia2015_{}.txt",
    *("casict2011/casict-A_{}.txt", "casict2011/casict-B_{}.txt", "casict2015/casict2015_{}.txt"),
    "datum2015/datum_{}.txt",
)
CWMT_CN = ("neu2017/NEU_{}.txt", *(f"datum2017/Book{book}_{{}}.txt" for book in range(1, 21)))
WMT = ("training/news-commentary-v12.zh-en.{}", "en-zh/UNv1.0.en-zh.{}")
TESTS = {
    "dev/newsdev2017-zhen-{}.sgm": "valid.{}.sgm",
    "dev/newstest2017-zhen-{}.sgm": "test.{}.sgm",
}

RECIPE = Translation(
    title="WMT17 Chinese-English, big",
    paper=_wu_2019.PAPER,
    figures=_wu_2019.FIGURES,
    origin="shape of the paper; dropouts of fairseq's lightconv_wmt_zh_en_big; the rest is not "
    "published",
    reading="schedule, batch, beam and length penalty are those of wmt16_en_de; corpora, cleaning "
    "and BPE follow Hassan et al. 2018, whom the paper names and who publish no recipe; words are "
    "split by jieba and sacremoses; scored by sacreBLEU on detokenised text; an author gives a "
    "dropout of 0.25 for the attention baseline (fairseq#534): -- --dropout 0.25",
    corpus="wmt17_zh_en",
    source="with the archives of CWMT",
    release={
        **parallel(dict.fromkeys(WMT, "train.{}"), "zh", "en"),
        **parallel(dict.fromkeys(CWMT, "train.{}"), "ch", "en"),
        **parallel(dict.fromkeys(CWMT_CN, "train.{}"), "cn", "en"),
        **parallel(TESTS, "src.zh", "ref.en"),
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
