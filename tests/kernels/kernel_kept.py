"""What compilers made for these tests, kept between runs, and for all checkouts of a user.

An entry is a file in the folder of the host device's kernels. Its name is a hash of all that it
depends on, its last bytes are a hash of the others: a damaged entry is made again. Entries unused
for 30 days are removed, as all in that folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from gtensor.hostcuda import build

_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """The folder of entries, without those that are long unused."""
    found = build.cache() / "tests"
    build.clear(found)
    return found


def kept(place: Path, depends_on: object, make: Callable[[Path], Path], suffix: str = "") -> Path:
    """The entry of a folder for `depends_on`, whose `repr` says everything that it depends on.

    If it is not there, `make` makes it in the folder that it is given. Executables, objects and
    precompiled headers are used as they lie there: nothing reads the bytes after their end.
    """
    name = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32] + suffix

    def sealed(room: Path) -> Path:
        made = make(room)
        with made.open("r+b") as file:
            file.write(hashlib.file_digest(file, "sha256").digest())
        return made

    return build.made(place / name, sealed, _is_whole)


def content(entry: Path) -> bytes:
    """What was written into an entry."""
    return entry.read_bytes()[:-_DIGEST]


def _is_whole(entry: Path) -> bool:
    try:
        data = memoryview(entry.read_bytes())
    except FileNotFoundError:
        return False
    return hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:]
