"""Memory reports as files: the writer of each suffix."""

from __future__ import annotations

import errno
import os
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtensor.memory.trace.lifetimes import History

_SNAPSHOTS = (".pickle", ".json")
_SUFFIXES = (".html", ".png", *_SNAPSHOTS)


def save(path: str | PathLike[str], history: History, snapshot: bool = False) -> None:
    """Write a history to a file atomically; `snapshot` allows the snapshot formats only.

    Raises as `check`, and OSError if the file cannot be written.
    """
    from gtensor.system.atomic import write_file

    check(path, snapshot)
    write_file(path, _bytes_of(history, Path(path).suffix))


def _bytes_of(history: History, suffix: str) -> bytes:
    """The file of this suffix. The writers are imported here: most programs save no recording."""
    if suffix == ".html":
        from gtensor.memory.trace.timeline_page import html_file

        return html_file(history)
    if suffix == ".png":
        from gtensor.memory.trace.timeline_picture import png_file

        return png_file(history)
    from gtensor.memory.trace.snapshots import json_file, pickle_file

    return pickle_file(history) if suffix == ".pickle" else json_file(history)


def check_folder(path: str | PathLike[str]) -> None:
    """Raise OSError if a file could not be written there: no folder, or not writable."""
    place = Path(os.path.realpath(path))
    folder = place.parent
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{path} could not be written: it is a folder")
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"{path} could not be written: there is no folder "
                                f"{str(folder)!r}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"{path} could not be written: the folder "
                              f"{str(folder)!r} is not writable")


def check(path: str | PathLike[str], snapshot: bool = False) -> None:
    """Raise ValueError for an unknown suffix, ModuleNotFoundError for .png without matplotlib."""
    wanted = _SNAPSHOTS if snapshot else _SUFFIXES
    suffix = Path(path).suffix
    if suffix not in wanted:
        raise ValueError(f"file {str(path)!r} given; wanted a name ending in "
                         f"{', '.join(wanted[:-1])} or {wanted[-1]}")
    if suffix == ".png" and find_spec("matplotlib") is None:
        raise ModuleNotFoundError("a picture (.png) needs matplotlib, which is not installed; pip "
                                  "install matplotlib, or name a file ending in .html")
