"""Multi30k English-French, trained as English-German, short."""

from .multi30k import PUBLIC
from .multi30k_short import multi30k_short

RECIPE = multi30k_short(
    "fr",
    updates_per_epoch=474,
    title="Multi30k English-French, short",
    origin=f"{PUBLIC}, for English-German, but for our reading",
    prepare_script=("prepare_multi30k.sh", "--target", "fr"),
    reading="all of it, trained as multi30k_short",
)
