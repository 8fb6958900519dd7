"""ALBERT-base with translation-invariant self-attention, and GLUE."""

from dataclasses import replace

from . import bert_small

RECIPE = replace(
    bert_small.RECIPE,
    title="ALBERT-base with TISA, fine-tuning on GLUE",
    paper="Wennberg and Henter 2021",
    origin="the paper's TISA; it fine-tunes and has no public recipe",
    reading="pre-training is that of bert_small, for ALBERT's own checkpoint is of another "
    "library (--checkpoint FILE fine-tunes a model that is there); fine-tuning is BERT's",
    shape="albert_base",
    mixer="tisa",
    seeds=(1, 2, 3),
    fine_tuning={},  # the script's, which is BERT's
    of_task={},
)
