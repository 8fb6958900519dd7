"""Multi30k English-French, trained as English-German."""

from .multi30k import multi30k

RECIPE = multi30k(
    "fr",
    {},
    title="Multi30k English-French",
    prepare_script=("prepare_multi30k.sh", "--target", "fr"),
    reading="the recipe of English-German",
)
