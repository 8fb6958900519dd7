"""ALBERT-base with translation-invariant self-attention, and GLUE."""

from dataclasses import replace

from . import bert_small

RECIPE = replace(
    bert_small.RECIPE,
    title="ALBERT-base with TISA, fine-tuning on GLUE",
    paper="Wennberg and Henter 2021",
    origin="the paper's TISA; it fine-tunes and has no public recipe",
    reading="the paper's model, ALBERT's own, is converted by scripts/convert_albert.py and "
    "fine-tuned with --checkpoint; without, pre-training is that of bert_small; fine-tuning is "
    "BERT's",
    shape="albert_base",
    mixer="tisa",
    seeds=(1, 2, 3),
    fine_tuning={},  # the script's, which is BERT's
    of_task={},
    fine_tuning_further={},
)
