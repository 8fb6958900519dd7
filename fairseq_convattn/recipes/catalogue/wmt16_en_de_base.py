"""WMT English-German, models of the base size, with everything else as for the big ones."""

from dataclasses import replace

from . import wmt16_en_de

RECIPE = replace(
    wmt16_en_de.RECIPE,
    title="WMT16 English-German, base",
    shape="wmt_en_de",
    published={},
    reading="the paper has base models in its ablations alone, on newstest2013; the training is "
    "that of the big ones",
)
