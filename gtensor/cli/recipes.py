"""The options of a recipe, for the commands that run one."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from gtensor.cli.help import Help
from gtensor.train import recipe_of


def recipe_parser(name: str, command: str) -> argparse.ArgumentParser:
    """The options of a recipe, under `gtensor COMMAND NAME`. UserError if it is unknown."""
    from gtensor.train.recipe import about  # here: all of training

    kind, defaults = recipe_of(name)
    made = argparse.ArgumentParser(
        prog=f"gtensor {command} {name}", usage="%(prog)s [OPTIONS]", formatter_class=Help,
        description=kind.captions.title)
    for one in fields(defaults):
        default, said = getattr(defaults, one.name), about(one)
        name, shown = f"--{one.name.replace('_', '-')}", said["help"]
        if default not in (None, ()):
            shown = f"{shown} ({default})".strip()
        if isinstance(default, bool):
            made.add_argument(name, action=argparse.BooleanOptionalAction, help=shown)
            continue
        action: Any = made.add_argument(
            name, type=str if default in (None, ()) else type(default),
            nargs="+" if said["many"] else None, help=shown,
            metavar="|".join(said["choices"]) or None)
        if said["choices"]:
            action.completer = lambda choices=said["choices"], **given: choices
    return made
