"""Files that are whole or not there: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gtensor.train.errors import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`; whatever happens, `path` holds the old bytes or all of the new ones.

    Raises UserError if the disk is full or the folder cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        kept = "; the file that was there is whole" if path.exists() else ""
        raise UserError(f"{path} could not be written: {error.strerror or error}{kept}") from error
    finally:
        if temporary is not None:
            os.unlink(temporary)


def _umask() -> int:
    """The process's mask of file permissions, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
