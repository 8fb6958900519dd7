"""Runs of recipes as a page: read from their folders, compared, drawn. Knows the files of
``recipes`` and none of its code."""


class ReportError(Exception):
    """A report cannot be written; the message says in one line why."""
