"""WMT17 Chinese-English, the big models."""

from ..sequence_to_sequence import PREPARED_HERE, TestSet, Translation, detokenised, tokenised
from . import _wu_2019

BOOKS = tuple(range(1, 21))
CORPORA = (
    ("training/news-commentary-v12.zh-en.zh", "training/news-commentary-v12.zh-en.en"),
    ("en-zh/UNv1.0.en-zh.zh", "en-zh/UNv1.0.en-zh.en"),
    ("casia2015/casia2015_ch.txt", "casia2015/casia2015_en.txt"),
    ("casict2011/casict-A_ch.txt", "casict2011/casict-A_en.txt"),
    ("casict2011/casict-B_ch.txt", "casict2011/casict-B_en.txt"),
    ("casict2015/casict2015_ch.txt", "casict2015/casict2015_en.txt"),
    ("datum2015/datum_ch.txt", "datum2015/datum_en.txt"),
    ("neu2017/NEU_cn.txt", "neu2017/NEU_en.txt"),
    *((f"datum2017/Book{book}_cn.txt", f"datum2017/Book{book}_en.txt") for book in BOOKS),
)

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
    prepare_script=("prepare_wmt17_zh_en.sh",),
    source="with the archives of CWMT",
    release={
        **{zh: "train.source" for zh, _ in CORPORA},
        **{en: "train.target" for _, en in CORPORA},
        **{
            f"dev/{name}-zhen-{end}": f"{split}.{side}.sgm"
            for name, split in (("newsdev2017", "valid"), ("newstest2017", "test"))
            for end, side in (("src.zh.sgm", "source"), ("ref.en.sgm", "target"))
        },
    },
    shape="wmt_zh_en_big",
    training=_wu_2019.training(updates=30_000),
    batch=_wu_2019.GPUS,
    decoding=_wu_2019.decoding(length_penalty="0.5"),
    tests=(
        TestSet(
            "newstest2017",
            (
                detokenised(
                    "en",
                    "test.raw.en",
                    published={"lightweight": 24.3, "dynamic": 24.4},
                    name="",
                ),
                tokenised("test.en", name="tokenised"),
            ),
        ),
    ),
    needs={**PREPARED_HERE, "prepare": (*PREPARED_HERE["prepare"], "jieba")},
)
