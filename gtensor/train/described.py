"""What a checkpoint says of its training run, checked: a file may come from anyone.

Every fact has its type, weights are finite, and a model is built only if the file's tensors are
those of a model of the stated sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from gtensor.checkpoint import CheckpointError, safe_open
from gtensor.checkpoint.session import description, names_of, progress_in
from gtensor.engine.handle.tensor import is_floating
from gtensor.nn.module import Module
from gtensor.system.documents import Facts
from gtensor.train.errors import UserError

Recipe: TypeAlias = Any  # of train.recipe, which imports this
OptionsT = TypeVar("OptionsT")
ModuleT = TypeVar("ModuleT", bound=Module)
Shapes = dict[str, tuple[int, ...]]
MOST_LETTERS = 40  # of a recipe's name
_BLOCK = "blocks.0."  # begins the names of a model's first block
_LEAST = 12  # times width**2: the elements of any recipe's block at least


class Described(NamedTuple):
    """A run as its checkpoint describes it.

    Attributes:
        recipe: the name of its class, whatever it is; empty for a network of the user's own.
        facts: all that the file says, to be read with the required types.
        shapes: of the model's tensors in the file.
    """

    path: Path
    recipe: str
    facts: Facts
    shapes: Shapes

    def options(self, kind: Recipe, defaults: OptionsT) -> OptionsT:
        """The options that describe the model of a kind of recipe; all others are the defaults.

        Raises ValueError, which does not name the file.
        """
        options: Any = defaults
        found = self.facts.within("model_options")
        try:
            return options.changed(**{
                name: found.text(name) if isinstance(getattr(defaults, name), str)
                else found.whole(name) for name in kind.describing})
        except UserError as error:
            raise ValueError(str(error)) from error

    def model(self, make: Callable[[Any], ModuleT], options: Any) -> ModuleT:
        """`make(options)`, after `check`."""
        self.check(make, options)
        return make(options)

    def check(self, make: Callable[[Any], Module], options: Any) -> None:
        """Raise CheckpointError unless the file's tensors are those of `make(options)`.

        That is a model of `options.layers` equal blocks named "blocks.0." and so on. One of a
        single block tells, which is made only if the file has elements for it.
        """
        layers, width = options.layers, options.width
        elements = sum(map(prod, self.shapes.values()))
        if layers > len(self.shapes) or _LEAST * width**2 > elements or self.shapes != _of_layers(
                make(replace(options, layers=1)), layers):
            raise CheckpointError(f"{self.path} says that its model has {layers} layers of width "
                                  f"{width}; its tensors are those of another model")


def _of_layers(model: Module, layers: int) -> Shapes:
    """The shapes of the state of a model like this one of one block, with so many of them."""
    found: Shapes = {}
    for name, value in model.state_dict().items():
        if name.startswith(_BLOCK):
            found |= {f"blocks.{layer}.{name.removeprefix(_BLOCK)}": value.shape
                      for layer in range(layers)}
        else:
            found[name] = value.shape
    return found


def described(path: Path) -> Described:
    """What a trainer's checkpoint says.

    Raises FileNotFoundError, OSError if the file cannot be read, CheckpointError if it is broken,
    no trainer's, or has weights or averages that are not finite; ValueError, which does not name
    the file, for a recipe that is no text.
    """
    with safe_open(path, "cpu") as file:
        said = progress_in(file)
        if not isinstance(said, dict) or not {"recipe", "losses"} <= said.keys():
            raise CheckpointError(f"{path} is not a checkpoint of gtensor train")
        facts = Facts("its description", said)
        for part in description(file)["parts"].keys() & {"model", "ema"}:
            for name in names_of(file, part).values():
                value = file.get_tensor(name).numpy()
                if is_floating(value.dtype) and not np.isfinite(value).all():
                    raise CheckpointError(f"{path} cannot be used: its {name!r} has numbers that "
                                          "are not finite")
        shapes = {name: file.entry(source).shape
                  for name, source in names_of(file, "model").items()}
    return Described(path, facts.text("recipe")[:MOST_LETTERS], facts, shapes)
