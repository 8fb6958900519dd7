"""Multi30k English-French, trained as English-German."""

from .multi30k import PUBLIC, multi30k

RECIPE = multi30k(
    "fr",
    title="Multi30k English-French",
    origin=f"{PUBLIC}, for English-German",
    prepare_script=("prepare_multi30k.sh", "--target", "fr"),
    reading="all of it, trained as multi30k",
)
