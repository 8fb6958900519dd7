"""Settings shared by the recipes of Wu et al. 2019; others use objective and optimizer, too."""

from ..command import CommandOptions, options
from ..devices import Batch

PAPER = "Wu et al. 2019 (arXiv 1901.10430)"
# where other recipes' figures were read
OF_CONVOLUTIONS = f"{PAPER}; the figures of convolutions as Papers with Code lists them"
FIGURES = (
    f"{OF_CONVOLUTIONS}, those of attention as NLP-progress lists Ott et al. 2018 "
    "(arXiv 1806.00187)"
)
PUBLIC = "fairseq's examples/pay_less_attention_paper"
START = (
    "layers start from PyTorch's initial values, those of the published code from Xavier's "
    "(-- --initialization xavier)"
)
OBJECTIVE = (
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer convattn_adam "
    "--adam-betas '(0.9, 0.98)'"
)
GPUS = Batch(3584, workers=8, update_freq=16)


def training(updates: int, warmup: int = 10_000, before: str = "") -> CommandOptions:
    """Adam with a warm-up, then half a cosine over the other updates; ``before``: more options."""
    return options(
        f"{before} {OBJECTIVE} --clip-norm 0.0 --weight-decay 0.0 --lr-scheduler cosine "
        f"--warmup-updates {warmup} --warmup-init-lr 1e-07 --lr 0.001 --min-lr 1e-07 "
        "--stop-min-lr 1e-09 --lr-shrink 1 --t-mult 1 "
        f"--lr-period-updates {updates - warmup} --max-update {updates} --keep-last-epochs 10"
    )


def decoding(length_penalty: str) -> CommandOptions:
    return options(f"--batch-size 128 --beam 5 --lenpen {length_penalty} --remove-bpe")
