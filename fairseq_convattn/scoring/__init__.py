"""Metrics of generated text. Importing ``fairseq_scorer`` registers them with fairseq; the
rest works without it."""
