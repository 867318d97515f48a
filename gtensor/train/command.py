"""`gtensor train`: a recipe of gtensor, or of a file, and its trainer in a terminal."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gtensor.settings import settings
from gtensor.train import recipe_of
from gtensor.train.errors import require
from gtensor.train.fitting import Interrupted
from gtensor.train.recipe import resumed
from gtensor.train.trainer import CHECKPOINT, ranks

INTERRUPTED = 130  # the shell's exit status for Ctrl-C


def folder_of(name: str) -> Path:
    """Where a recipe is trained, unless the user says otherwise; of a file, by its name."""
    return Path("runs") / Path(name).stem


def train(name: str, out: Path | None, resume: bool, quiet: bool, /, **given: object) -> int:
    """Run a recipe to its end or to Ctrl-C; the exit status.

    Every array comes from the arena here, however small, so that every byte is accounted for.
    """
    for module, package in (("rich", "rich"), ("matplotlib", "matplotlib")):
        require(module, package)
    kind, defaults = recipe_of(name)
    folder = out or folder_of(name)
    with settings.override(arena_min_bytes=0), np.errstate(all="ignore"), kind.threads():
        recipe = (resumed(folder / CHECKPOINT, kind, defaults, given) if resume
                  else kind(defaults.changed(**given)))
        try:
            recipe.trainer(ranks(), folder).fit(resume, quiet)
        except Interrupted:
            return INTERRUPTED
    return 0
