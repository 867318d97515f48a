"""Training recipes: `gtensor train NAME`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from gtensor.train.errors import UserError

RECIPES = {"digits": "gtensor.train.digits"}

__all__ = ["RECIPES", "UserError", "recipe"]


def recipe(name: str) -> ModuleType:
    """A recipe: a module of `TITLE`, `DEFAULTS`, `data()`, `model()`. UserError if unknown."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; wanted one of {', '.join(RECIPES)}")
    return import_module(RECIPES[name])
