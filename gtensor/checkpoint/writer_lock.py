"""A lock for the writers of a checkpoint, with a note of files to remove after a kill."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gtensor.system.atomic import digest, naming, write
from gtensor.system.files import MOST_NOTE_BYTES, check_regular, read_text, size_within


class Turn:
    """A held lock, and a note of the files that a kill could leave.

    Attributes:
        alone: whether no other writer can hold the lock; False where files cannot be locked.
        names: of the noted files.
    """

    def __init__(self, descriptor: int, alone: bool) -> None:
        self._descriptor = descriptor
        self.alone = alone
        self.names: list[str] = []

    def note(self, names: Iterable[str]) -> None:
        """Note files of the folder, before they are made or replaced."""
        self.names = sorted(names)
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        write(self._descriptor, json.dumps(self.names).encode())

    def left(self) -> list[str]:
        """The note of a killed writer."""
        try:
            size = size_within(self._descriptor, MOST_NOTE_BYTES)
            found = json.loads(read_text(self._descriptor, 0, size))
        except (ValueError, RecursionError):  # incomplete, or of another program
            return []
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


@contextmanager
def turn(
    path: Path, owner: str, settle: Callable[[list[str]], None]
) -> Iterator[Turn]:
    """Hold the lock for files of `owner` in the folder of `path`; other writers wait.

    `settle` is called with the noted files at the end, also after an error, and by the next writer
    after a kill. It removes those that belong to no checkpoint.

    Raises OSError, which names `path`, if the folder cannot be written.
    """
    name = path.with_name(f".{digest(owner)}.turn")
    with naming(path):
        descriptor, alone = _locked(name)
    mine = Turn(descriptor, alone)
    try:
        if alone:
            settle(mine.left())
        try:
            yield mine
        finally:
            settle(mine.names)
            with suppress(OSError):
                os.unlink(name)
    finally:
        os.close(descriptor)


def _locked(name: Path) -> tuple[int, bool]:
    """The open lock file, and whether it is locked."""
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                             | os.O_NONBLOCK, 0o666)
        alone = True
        try:
            check_regular(os.fstat(descriptor), name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                alone = False
            if not alone or os.fstat(descriptor).st_nlink:
                return descriptor, alone
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the writer before removed it at its end
