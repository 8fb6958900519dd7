"""WMT English-German, models of the base size, with everything else as for the big ones."""

from dataclasses import replace

from . import wmt16_en_de

TEST = wmt16_en_de.RECIPE.tests[0]
SCORINGS = tuple(replace(scoring, published={}) for scoring in TEST.scorings)

RECIPE = replace(
    wmt16_en_de.RECIPE,
    title="WMT16 English-German, base",
    shape="wmt_en_de",
    tests=(replace(TEST, scorings=SCORINGS),),
    reading="the paper has base models in its ablations alone, on newstest2013; the training is "
    "that of the big ones",
)
