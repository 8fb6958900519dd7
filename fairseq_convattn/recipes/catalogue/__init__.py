"""The recipes, by task: a variable of these modules holds a recipe and is its name."""

from ..recipe import Recipe
from . import language_models, masked_language_models, summarization, translation

_RECIPES = {
    name: value
    for module in (language_models, masked_language_models, summarization, translation)
    for name, value in vars(module).items()
    if isinstance(value, Recipe)
}


def names() -> list[str]:
    """Of all recipes."""
    return sorted(_RECIPES)


def recipe(name: str) -> Recipe:
    """The recipe of a name that :func:`names` has."""
    return _RECIPES[name]
