"""BERT-base pre-trained with composite attention, and GLUE."""

from dataclasses import replace

from . import bert_small

RECIPE = replace(
    bert_small.RECIPE,
    title="BERT-base, pre-training and GLUE",
    shape="bert_base",
    fine_tuning={**bert_small.RECIPE.fine_tuning, "--lr": "0.0001"},
)
