"""Language models at word level."""

from ..command import CommandOptions, options
from ..devices import Batch
from ..language_model import LanguageModel
from . import _wu_2019

_GPUS = Batch(3072, workers=8, update_freq=3)
# an epoch can take days, so save and validate by updates; this does not affect learning
RESUMPTION = "--no-epoch-checkpoints --save-interval-updates 2000 --keep-interval-updates 1"


def _training(break_mode: str, period: int, shrink: str, updates: int) -> CommandOptions:
    """The optimizer of Baevski and Auli 2019: Nesterov momentum, cosine cycles that double in
    length.

    Args:
        period: updates of the first cycle, after the warm-up.
        shrink: ratio of a cycle's learning rates to those of the cycle before.
    """
    return options(
        f"--criterion adaptive_loss --sample-break-mode {break_mode} --tokens-per-sample 3072 "
        "--optimizer convattn_nag --clip-norm 0.1 --lr-scheduler cosine --warmup-updates 16000 "
        "--warmup-init-lr 1e-07 --lr 1.0 --min-lr 0.0001 --stop-min-lr 1e-09 "
        f"--lr-shrink {shrink} --t-mult 2 --lr-period-updates {period} --max-update {updates} "
        f"--skip-invalid-size-inputs-valid-test {RESUMPTION}"
    )


_TRAINING = "training-monolingual.tokenized.shuffled"
_HELDOUT = "heldout-monolingual.tokenized.shuffled"

gbw = LanguageModel(
    title="One Billion Word",
    paper=_wu_2019.OF_CONVOLUTIONS,
    origin="shape of the paper, which trains like Baevski and Auli 2019 and has no public recipe "
    "for this task (asked in fairseq#822 and #898); dropouts of fairseq's lightconv_lm_gbw and "
    "transformer_lm_baevski_gbw",
    unconfirmed="the schedule is quoted from memory of Baevski and Auli 2019: three cosine cycles "
    "in 975,000 updates, the first of 137,000, each with 0.6 times the learning rate of the one "
    "before; so is the published perplexity of attention",
    reading=f"{_wu_2019.START}; sentences are trained and scored one by one; dropouts are 0.1, "
    "with none of activations or in the adaptive softmax; everything else as in wikitext103",
    corpus="gbw",
    release={
        f"{_TRAINING}/news.en-00001-of-00100": "train.source",
        f"{_HELDOUT}/news.en.heldout-00000-of-00050": "test.source",
        f"{_HELDOUT}/news.en.heldout-00001-of-00050": "valid.source",
    },
    shape="lm_gbw",
    training=_training("eos", period=137_000, shrink="0.6", updates=975_000),
    batch=_GPUS,
    evaluations={"": options("--sample-break-mode eos --max-tokens 3072 --softmax-batch 1024")},
    published={"test perplexity": {"dynamic": 26.67, "attention": 26.73}},
)

wikitext103 = LanguageModel(
    title="WikiText-103",
    paper="Baevski and Auli 2019 (arXiv 1809.10853), abstract",
    origin="fairseq's examples/language_model, for WikiText-103",
    reading="eight GPUs, because the published command gives no number; one cosine cycle of "
    "270,000 updates, as in that command, where the paper has several (t-mult and lr-shrink then "
    "have no effect); mixers other than attention, with the kernels of gbw",
    corpus="wikitext103",
    release={f"wiki.{split}.tokens": f"{split}.source" for split in ("train", "valid", "test")},
    shape="lm_wiki103",
    mixer="attention",
    training=_training("none", period=270_000, shrink="0.75", updates=286_000),
    batch=_GPUS,
    evaluations={
        "": options(
            "--sample-break-mode complete --tokens-per-sample 3072 --max-tokens 3072 "
            "--context-window 2560 --softmax-batch 1024"
        )
    },
    published={"test perplexity": {"attention": 18.7}},
)

wikitext2 = LanguageModel(
    title="WikiText-2",
    paper="Merity et al. 2016, the corpus",
    origin="ours: a small model for a small corpus",
    reading="all settings of the model and its training; <unk> and ends of lines are scored, as "
    "usual; scored twice, with at least 128 tokens of context and without context",
    corpus="wikitext2",
    release={f"{split}.txt": f"{split}.source" for split in ("train", "valid", "test")},
    shape="lm_tiny",
    training=options(
        "--criterion adaptive_loss --adaptive-softmax-cutoff 2000,10000 "
        "--adaptive-softmax-factor 2 --adaptive-input true --adaptive-input-factor 2 "
        "--tie-adaptive-weights true --tie-adaptive-proj true --sample-break-mode none "
        "--tokens-per-sample 256 --optimizer convattn_adam --adam-betas '(0.9, 0.98)' "
        "--weight-decay 0.01 --clip-norm 1.0 --lr 0.002 --lr-scheduler polynomial_decay "
        "--warmup-updates 200 --total-num-update 2000 --max-update 2000 --keep-last-epochs 1"
    ),
    batch=Batch(4096, workers=1, update_freq=2),
    evaluations={
        name: options(
            "--sample-break-mode none --tokens-per-sample 256 --max-tokens 4096 "
            f"--context-window {context}"
        )
        for name, context in (("", 128), ("without context", 0))
    },
)
