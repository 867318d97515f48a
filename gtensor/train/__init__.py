"""Training: `Trainer` for a network of one's own, recipes for `gtensor train`.

    trainer = gt.train.Trainer(net, optimizer, loss, data, epochs=10, batch_size=64,
                               folder="runs/mine")
    trainer.fit()                                # gtensor train does the same with its recipes
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtensor.system.late_imports import late as _late
from gtensor.train.errors import NotFinite, UserError

if TYPE_CHECKING:
    from gtensor.train.callbacks import Callback, EarlyStopping
    from gtensor.train.fitting import Interrupted
    from gtensor.train.progress import Captions, Progress
    from gtensor.train.recipe import Options, Recipe, option
    from gtensor.train.trainer import Trainer
else:
    __getattr__, __dir__ = _late(__name__, {
        "Callback": "gtensor.train.callbacks", "EarlyStopping": "gtensor.train.callbacks",
        "Captions": "gtensor.train.progress", "Progress": "gtensor.train.progress",
        "Interrupted": "gtensor.train.fitting", "Options": "gtensor.train.recipe",
        "Recipe": "gtensor.train.recipe", "option": "gtensor.train.recipe",
        "Trainer": "gtensor.train.trainer"})

RECIPES = {  # modules of this package, each with a class of its name
    "digits": "classify handwritten digits of 8 x 8 pixels",
    "text": "predict the next byte of a text, with a Transformer or a state-space model",
    "diffusion": "draw handwritten digits out of noise",
}

__all__ = [
    "Callback", "Captions", "EarlyStopping", "Interrupted", "NotFinite", "Options", "Progress",
    "Recipe", "Trainer", "UserError", "option",
]


def recipe_of(name: str) -> tuple[type[Recipe[Any]], Options]:
    """The class of a recipe, or of the one in a Python file, and its default options.

    Raises UserError if there is none.
    """
    if name in RECIPES:
        kind = getattr(import_module(f"gtensor.train.{name}"), name.title())
    elif name.endswith(".py"):
        kind = _recipe_in(Path(name))
    else:
        raise UserError(f"unknown recipe {name!r}; wanted one of {', '.join(RECIPES)}, or a Python "
                        "file with one")
    return kind, kind.options_type()


def _recipe_in(path: Path) -> type[Recipe[Any]]:
    """The only recipe that a file defines; modules beside the file are found."""
    from gtensor.train.recipe import Recipe

    if not path.is_file():
        raise UserError(f"there is no file {path}; wanted a Python file with a recipe")
    name = "__recipe__"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    found = [one for one in vars(module).values() if isinstance(one, type)
             and issubclass(one, Recipe) and one.__module__ == name]
    if len(found) != 1:
        names = ", ".join(one.__name__ for one in found) or "none"
        raise UserError(f"{path} defines the recipes {names}; wanted one subclass of "
                        "gt.train.Recipe")
    return found[0]
