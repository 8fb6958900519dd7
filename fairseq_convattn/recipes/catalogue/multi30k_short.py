"""Multi30k English-German with 4 % of the published tokens, for a CPU."""

from dataclasses import replace

from ..command import options
from ..devices import Batch
from ..sequence_to_sequence import Translation
from . import _wu_2019
from .multi30k import PUBLIC, multi30k

_EPOCHS = 6


def multi30k_short(target: str, updates_per_epoch: int, **others) -> Translation:
    """The recipe of the same source and training for a target language."""
    return replace(
        multi30k(target, **others),
        training=options(
            f"--share-all-embeddings --dropout 0.2 {_wu_2019.OBJECTIVE} --lr 0.002 "
            "--lr-scheduler polynomial_decay --warmup-updates 400 "
            f"--total-num-update {_EPOCHS * updates_per_epoch} --max-epoch {_EPOCHS} "
            "--keep-last-epochs 3"
        ),
        batch=Batch(1024, workers=1, update_freq=1),
        average=3,
    )


RECIPE = multi30k_short(
    "de",
    updates_per_epoch=460,
    title="Multi30k English-German, short",
    origin=f"{PUBLIC}, but for our reading",
    reading="the size of a CPU, to compare mixers: 6 epochs of 1,024 tokens an update, 4 % of the "
    "tokens of 8,000 updates of 8,192, at which the published training ends at the latest; "
    "learning rate 0.002 falling linearly to 0 after 400 updates, no clipping, dropout 0.2, of "
    "attention weights and kernels 0.1, mean of the last three epochs",
)
