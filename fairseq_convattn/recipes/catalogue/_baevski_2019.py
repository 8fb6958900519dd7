"""The recipe of Baevski and Auli 2019."""

from ..command import Options, options
from ..devices import Batch

PUBLIC = "fairseq's examples/language_model, for WikiText-103"
GPUS = Batch(3072, workers=8, update_freq=3)
# an epoch can take days; these have no effect on what is learned
RESUMPTION = "--no-epoch-checkpoints --save-interval-updates 2000 --keep-interval-updates 1"


def training(break_mode: str, period: int, shrink: str, updates: int) -> Options:
    """Nesterov's momentum, and cosine cycles of which each is twice as long as the one before.

    Args:
        period: updates of the first cycle, after the warm-up.
        shrink: the learning rates of a cycle over those of the one before.
    """
    return options(
        f"--criterion adaptive_loss --sample-break-mode {break_mode} --tokens-per-sample 3072 "
        "--optimizer nag --clip-norm 0.1 --lr-scheduler cosine --warmup-updates 16000 "
        "--warmup-init-lr 1e-07 --lr 1.0 --min-lr 0.0001 --stop-min-lr 1e-09 "
        f"--lr-shrink {shrink} --t-mult 2 --lr-period-updates {period} --max-update {updates} "
        f"--skip-invalid-size-inputs-valid-test {RESUMPTION}"
    )
