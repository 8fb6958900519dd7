"""The recipes, a file each, with a ``RECIPE``; those that begin with _ are what some share."""

import importlib
import pkgutil

from ..recipe import Recipe


def names() -> list[str]:
    """Of all recipes."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if not name.startswith("_"))


def recipe(name: str) -> Recipe:
    """The recipe of a name that :func:`names` has."""
    return importlib.import_module(f"{__name__}.{name}").RECIPE
