"""The recipes, by task. Each is a variable of these modules, whose name is the recipe's."""

from ..recipe import Recipe
from . import language_models, masked_language_models, summarization, translation

_RECIPES = {
    name: value
    for module in (language_models, masked_language_models, summarization, translation)
    for name, value in vars(module).items()
    if isinstance(value, Recipe)
}


def names() -> list[str]:
    """The names of all recipes."""
    return sorted(_RECIPES)


def recipe(name: str) -> Recipe:
    """The recipe with this name, one of :func:`names`."""
    return _RECIPES[name]
