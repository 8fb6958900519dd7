"""Checkpoints: reading that runs nothing, averages, and other formats than fairseq's of today."""
