"""Files that are whole or not there: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

WRITE_BYTES = 1 << 26  # in one call of the system, so that Ctrl-C need not wait for a whole tensor


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor; what is written to it stands at `path` when the block ends without error.

    Whatever happens, a kill and a power cut included, `path` holds the old bytes or all of the new
    ones. What a killed writer left beside it, the next one removes.

    Raises OSError, in one sentence, if the disk is full or the folder cannot be written.
    """
    place = Path(os.path.realpath(path))  # through a link: the file it names is replaced
    temporary = None
    try:
        sweep(place.parent, re.escape(place.name))
        descriptor, temporary = _beside(place)
        try:
            yield descriptor
            os.fsync(descriptor)
            os.replace(temporary, place)
            temporary = None
        finally:
            os.close(descriptor)
        sync_folder(place.parent)
    except OSError as error:
        kept = "; the file that was there is whole" if place.exists() else ""
        raise OSError(error.errno, f"{path} could not be written: {error.strerror or error}{kept}"
                      ) from error
    finally:
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def write(descriptor: int, data: Any) -> None:
    """Write all bytes of a buffer."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest[:WRITE_BYTES]):]


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Put `data` at `path`, all or nothing. Raises OSError as `replacing`."""
    with replacing(path) as descriptor:
        write(descriptor, data)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(place: Path) -> tuple[int, str]:
    """A new file in the same folder, locked for as long as this process lives and writes."""
    while True:
        name = str(place.with_name(f".{place.name}.{secrets.token_hex(6)}.tmp"))
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks: its leftovers stay, nothing else
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)  # another writer swept it before it was locked


def sweep(folder: Path, name: str) -> None:
    """Remove what writers left that were killed (nobody holds its lock) before they had put a file
    in its place whose name matches `name`, a regular expression."""
    pattern = re.compile(rf"\.{name}\.[0-9a-f]{{12}}\.tmp")
    for left in filter(pattern.fullmatch, os.listdir(folder)):
        with suppress(OSError):
            descriptor = os.open(folder / left, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(folder / left)
            finally:
                os.close(descriptor)

