"""Atomic file writes, with errors for the user of a command."""

from __future__ import annotations

import os
from pathlib import Path

from gtensor.system.atomic import make_folder_of, write_file
from gtensor.train.errors import UserError, told_to_user


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically: it has either the old bytes or all of the new ones.

    Raises UserError if the disk is full or the folder cannot be written.
    """
    with told_to_user():
        make_folder_of(path)
        write_file(path, data)


def make_folder(folder: Path, file: str) -> None:
    """Make the folder of a run, before hours of work. UserError if `file` cannot be written there.
    """
    with told_to_user():
        make_folder_of(folder / file)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"the folder {folder} cannot be written to")
