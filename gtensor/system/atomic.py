"""Atomic file writes: a temporary file in the same folder is synced and renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gtensor.system.files import check_regular, opened

UNWRITTEN = "could not be written"
WRITE_BYTES = 1 << 26  # in one call of the system, so that Ctrl-C need not wait for a whole tensor


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, owner: str | None = None, mode: int | None = None
) -> Iterator[int]:
    """A descriptor; its bytes become the file at `path` when the block ends without error.

    Also after a kill or a power cut `path` has either the old bytes or all of the new ones. The
    next writer removes the temporary file of a killed one.

    Args:
        owner: of the temporary file, by default the name of the file; the next writer of the same
            owner removes it after a kill.
        mode: permissions of a new file; a replaced one keeps its own.

    Raises OSError, in one sentence, if the disk is full, the folder cannot be written, or the path
    has something else than a regular file.
    """
    place = Path(os.path.realpath(path))  # through a link: the file it names is replaced
    owner = place.name if owner is None else owner
    kept = mode_of(place)
    temporary = None
    try:
        _sweep(place.parent, owner)
        descriptor, temporary = _beside(place.parent, owner)
        try:
            _give_mode(descriptor, mode if kept is None else kept)
            yield descriptor
            os.fsync(descriptor)
            os.replace(temporary, place)
            temporary = None
        finally:
            os.close(descriptor)
        sync_folder(place.parent)
    except OSError as error:
        whole = "; the file that was there is whole" if os.path.exists(place) else ""
        raise OSError(error.errno, f"{path} {UNWRITTEN}: {error.strerror or error}{whole}"
                      ) from error
    finally:
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """An OSError of the block names the file to be written, also if it is about another file."""
    try:
        yield
    except OSError as error:
        if UNWRITTEN in (error.strerror or ""):
            raise
        where = f" ({str(error.filename)!r})" if error.filename not in (None, str(path)) else ""
        raise OSError(error.errno, f"{path} {UNWRITTEN}: {error.strerror or error}{where}"
                      ) from error


class Lock(NamedTuple):
    """A lock file, open and empty unless its last writer was killed after it wrote into it.

    Attributes:
        held: whether no other writer can hold it; False where files cannot be locked.
    """

    descriptor: int
    path: Path
    held: bool


def lock_file(path: Path, owner: str) -> Path:
    """The lock file for files of `owner` in the folder of `path`."""
    return path.with_name(f".{digest(owner)}.turn")


@contextmanager
def locked(path: Path, owner: str, wait: bool = True) -> Iterator[Lock]:
    """Hold the lock for files of `owner` in the folder of `path`; other writers wait.

    The lock file is removed at the end if it is empty. Raises OSError if the folder cannot be
    written, BlockingIOError if another writer holds the lock and is not to be waited for.
    """
    name = lock_file(path, owner)
    current = False
    while not current:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                             | os.O_NONBLOCK, 0o666)
        try:
            check_regular(os.fstat(descriptor), name)
            held = _lock(descriptor, 0 if wait else fcntl.LOCK_NB)
            current = not held or os.fstat(descriptor).st_nlink > 0  # else it was removed meanwhile
            if current:
                try:
                    yield Lock(descriptor, name, held)
                finally:
                    if not os.fstat(descriptor).st_size:
                        with suppress(OSError):
                            os.unlink(name)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, flags: int = 0) -> bool:
    """Lock an open file; False if it cannot be, as on a file system without locks.

    With LOCK_NB raises BlockingIOError if another has locked it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def make_folder_of(path: str | os.PathLike[str]) -> None:
    """Make the folder of a file. Raises OSError, which names the file."""
    with naming(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def write(descriptor: int, data: Any) -> None:
    """Write all bytes of a buffer."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest[:WRITE_BYTES]):]


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` atomically. Raises OSError as `replacing`."""
    with replacing(path) as descriptor:
        write(descriptor, data)


def mode_of(path: str | os.PathLike[str]) -> int | None:
    """The permissions of a file, None if there is none.

    Raises OSError if it is not a regular file, which must not be replaced.
    """
    try:
        found = os.stat(path).st_mode
    except OSError:
        return None
    if not stat.S_ISREG(found):
        folder = stat.S_ISDIR(found)
        raise OSError(errno.EISDIR if folder else errno.EEXIST, f"{path} {UNWRITTEN}: it is "
                      f"{'a folder' if folder else 'no regular file'}, which stays")
    return found & 0o777


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(name: str) -> str:
    """A name of 12 letters for one that may be as long as the system allows."""
    return hashlib.blake2b(os.fsencode(name), digest_size=6).hexdigest()


def _beside(folder: Path, owner: str) -> tuple[int, str]:
    """A new file in the same folder, locked for as long as this process lives and writes."""
    while True:
        name = str(folder / f".{digest(owner)}.{secrets.token_hex(6)}.tmp")
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        _lock(descriptor)  # on a file system without locks leftovers stay, nothing else
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)  # another writer swept it before it was locked


def _give_mode(descriptor: int, mode: int | None) -> None:
    """Set the permissions, unless they are so (not every file system lets them be set)."""
    if mode is not None and os.fstat(descriptor).st_mode & 0o777 != mode:
        os.fchmod(descriptor, mode)


def _sweep(folder: Path, owner: str) -> None:
    """Remove temporary files of this owner's killed writers, whose locks are free."""
    pattern = re.compile(rf"\.{digest(owner)}\.[0-9a-f]{{12}}\.tmp")
    for left in filter(pattern.fullmatch, os.listdir(folder)):
        with suppress(OSError), opened(folder / left) as descriptor:
            if _lock(descriptor, fcntl.LOCK_NB):
                os.unlink(folder / left)
