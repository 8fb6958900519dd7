"""GLUE (Wang et al. 2019): its files for fairseq's ``sentence_prediction``, fine-tuning on them and
its metrics, for any model."""
