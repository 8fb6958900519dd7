"""Reports on runs of recipes. Reads the files that ``recipes`` writes; imports none of its code."""


class ReportError(Exception):
    """A report cannot be written; the message says in one line why."""
