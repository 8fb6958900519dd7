"""Recipes for published results: ``python -m fairseq_convattn.recipes``.

A recipe is data in a module of ``catalogue``; the runner turns it into stages.
"""
