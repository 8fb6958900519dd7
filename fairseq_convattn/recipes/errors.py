"""What goes wrong before any work is done, or while it is."""


class RecipeError(Exception):
    """A recipe cannot be run as asked, or a stage failed; the message says in one line why."""
