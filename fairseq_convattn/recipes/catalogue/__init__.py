"""The recipes by name: each is a variable of the module of its task."""

from ..recipe import Recipe
from . import language_models, masked_language_models, summarization, translation

RECIPES = {
    name: value
    for module in (language_models, masked_language_models, summarization, translation)
    for name, value in vars(module).items()
    if isinstance(value, Recipe)
}
