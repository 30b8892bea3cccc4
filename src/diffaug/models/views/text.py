"""The interface of views that differ in their text. Without torch, since the command line reads about synonyms too."""

from __future__ import annotations

from abc import ABC, abstractmethod

from diffaug.config import Recipe
from diffaug.config.registry import check_options


class TextViews(ABC):
    """Views that differ in their text: the other sentence of a positive pair is made from the first.

    A plugin's class has the constructor ``(seed, **options)``: the recipe's `seed` and `views.options`.
    """

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> TextViews:
        """The views of a recipe."""
        check_options("views.options", cls, recipe.views.options, "seed")
        return cls(recipe.seed, **recipe.views.options)  # type: ignore[call-arg]

    @abstractmethod
    def __call__(self, sentence: str) -> str:
        """The other sentence; the same one at every call, so that a resumed run sees the same data."""
