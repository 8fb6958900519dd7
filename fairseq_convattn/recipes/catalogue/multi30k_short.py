"""Multi30k English-German within a twentieth of the published tokens, for a CPU."""

from dataclasses import replace

from ..devices import Batch
from .multi30k import multi30k

_EPOCHS = 6
_UPDATES_PER_EPOCH = 460

RECIPE = replace(
    multi30k(
        "de",
        {},  # the published figures are those of the whole training
        title="Multi30k English-German, short",
        prepare_script=("prepare_multi30k.sh",),
        reading="6 epochs of 1,024 tokens an update (published: at most 8,000 updates of 8,192), "
        "learning rate falling linearly to 0, less dropout",
    ),
    training={
        "--share-all-embeddings": None,
        "--dropout": "0.2",
        "--criterion": "label_smoothed_cross_entropy",
        "--label-smoothing": "0.1",
        "--optimizer": "adam",
        "--adam-betas": "(0.9, 0.98)",
        "--lr": "0.002",
        "--lr-scheduler": "polynomial_decay",
        "--warmup-updates": "400",
        "--total-num-update": str(_EPOCHS * _UPDATES_PER_EPOCH),
        "--max-epoch": str(_EPOCHS),
        "--keep-last-epochs": "3",
    },
    batch=Batch(1024, workers=1, update_freq=1),
    average=3,
)
