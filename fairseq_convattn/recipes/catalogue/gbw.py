"""The One Billion Word benchmark."""

from ..command import options
from ..language_model import LanguageModel
from . import _baevski_2019, _wu_2019

TRAINING = "training-monolingual.tokenized.shuffled"
HELDOUT = "heldout-monolingual.tokenized.shuffled"

RECIPE = LanguageModel(
    title="One Billion Word",
    paper=_wu_2019.PAPER,
    figures=_wu_2019.FIGURES,
    origin="shape of the paper, which trains as Baevski and Auli 2019 do and has no public recipe "
    "for this task; dropouts of fairseq's lightconv_lm_gbw and transformer_lm_baevski_gbw",
    unconfirmed="the schedule, three cosine cycles in 975,000 updates, the first of 137,000, each "
    "of 0.6 times the learning rate before, is quoted from memory of Baevski and Auli 2019",
    reading="sentences are trained and scored one by one; everything else as in wikitext103, but "
    "dropouts of 0.1 and none of activations or in the adaptive softmax",
    corpus="gbw",
    release={
        f"{TRAINING}/news.en-00001-of-00100": "train.source",
        f"{HELDOUT}/news.en.heldout-00000-of-00050": "test.source",
        f"{HELDOUT}/news.en.heldout-00001-of-00050": "valid.source",
    },
    shape="lm_gbw",
    training=_baevski_2019.training("eos", period=137_000, shrink="0.6", updates=975_000),
    batch=_baevski_2019.GPUS,
    evaluations={"": options("--sample-break-mode eos --max-tokens 3072 --softmax-batch 1024")},
    published={"test perplexity": {"dynamic": 26.67, "attention": 26.73}},
)
