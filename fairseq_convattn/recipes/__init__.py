"""Recipes for published results: ``python -m fairseq_convattn.recipes``.

A recipe is data, one file in ``catalogue``; the runner makes the stages of it.
"""
