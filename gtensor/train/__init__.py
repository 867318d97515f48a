"""Training recipes: `gtensor train NAME`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gtensor.train.errors import UserError

if TYPE_CHECKING:
    from gtensor.train.recipe import Options, Recipe

RECIPES = {  # modules of this package, each with a class of its name and that one's options
    "digits": "classify handwritten digits of 8 x 8 pixels",
    "text": "predict the next byte of a text, with a Transformer or a state-space model",
    "diffusion": "draw handwritten digits out of noise",
}

__all__ = ["RECIPES", "UserError", "recipe_of"]


def recipe_of(name: str) -> tuple[type[Recipe[Any]], Options]:
    """A recipe's class, and its default options. UserError if unknown."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; wanted one of {', '.join(RECIPES)}")
    module = import_module(f"gtensor.train.{name}")
    return getattr(module, name.title()), getattr(module, f"{name.title()}Options")()
