"""The options of a recipe, for the commands that run one."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from gtensor.cli.help import Help
from gtensor.train import recipe_of


def recipe_parser(name: str, command: str) -> argparse.ArgumentParser:
    """The options of a recipe, under `gtensor COMMAND NAME`. UserError if it is unknown."""
    kind, defaults = recipe_of(name)
    made = argparse.ArgumentParser(
        prog=f"gtensor {command} {name}", formatter_class=Help,
        description=kind.captions.title)
    for one in fields(defaults):
        default, about = getattr(defaults, one.name), one.metadata
        shown = "" if default in (None, ()) else f" ({default})"
        action: Any = made.add_argument(
            f"--{one.name.replace('_', '-')}", type=str if default in (None, ()) else type(default),
            nargs="+" if about["many"] else None, help=about["help"] + shown,
            metavar="|".join(about["choices"]) or None)
        if about["choices"]:
            action.completer = lambda choices=about["choices"], **given: choices
    return made
