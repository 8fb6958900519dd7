"""Multi30k English-French, trained as English-German, short."""

from .multi30k_short import multi30k_short

RECIPE = multi30k_short(
    "fr",
    updates_per_epoch=474,
    title="Multi30k English-French, short",
    prepare_script=("prepare_multi30k.sh", "--target", "fr"),
    reading="the short recipe of English-German",
)
