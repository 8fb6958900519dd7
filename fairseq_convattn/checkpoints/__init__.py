"""Checkpoints: safe reading, averaging, and conversion from other formats."""
