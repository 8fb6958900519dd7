"""WikiText-103, at word level."""

from ..command import options
from ..language_model import LanguageModel
from . import _baevski_2019

RECIPE = LanguageModel(
    title="WikiText-103",
    paper="Baevski and Auli 2019",
    figures="Baevski and Auli 2019 (arXiv 1809.10853), abstract",
    origin=_baevski_2019.PUBLIC,
    reading="eight GPUs, which the published command does not say; its one cosine cycle of 270,000 "
    "updates, in which t-mult and lr-shrink do nothing, for the paper's several; mixers other than "
    "attention, and with them the kernels of convolutions, which are those of gbw",
    corpus="wikitext103",
    release={
        "wiki.train.tokens": "train.source",
        "wiki.valid.tokens": "valid.source",
        "wiki.test.tokens": "test.source",
    },
    shape="lm_wiki103",
    mixer="attention",
    training=_baevski_2019.training("none", period=270_000, shrink="0.75", updates=286_000),
    batch=_baevski_2019.GPUS,
    evaluations={
        "": options(
            "--sample-break-mode complete --tokens-per-sample 3072 --max-tokens 3072 "
            "--context-window 2560 --softmax-batch 1024"
        )
    },
    published={"test perplexity": {"attention": 18.7}},
)
