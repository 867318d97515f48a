"""Atomic file writes and the folder of a run, with errors for the user of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import gethostname

from gtensor.system.atomic import lock_file, locked, make_folder_of, naming, write, write_file
from gtensor.system.files import MOST_POINTER_BYTES, read_all
from gtensor.train.errors import UserError, told_to_user

_OWNER = "training"


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


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make and hold the folder of a run within the block.

    Raises UserError if it cannot be written to, or another training holds it. The lock is the
    system's, so it ends with its process, whatever ends that. Where the file system has no locks
    nothing is held.
    """
    file = folder / "checkpoint.safetensors"
    make_folder(folder, file.name)
    with ExitStack() as stack:
        with told_to_user():
            try:
                with naming(file):
                    lock = stack.enter_context(locked(file, _OWNER, wait=False))
                    os.ftruncate(lock.descriptor, 0)  # of a training that was killed
                    write(lock.descriptor, f"process {os.getpid()} on {gethostname()}".encode())
            except BlockingIOError:
                raise UserError(f"{folder} is the folder of a training that runs{_holder(file)}; "
                                "wait for its end, or give another folder with --out") from None
            stack.callback(os.ftruncate, lock.descriptor, 0)
        yield


def _holder(file: Path) -> str:
    """The process that holds the folder, as it has noted itself."""
    with suppress(OSError, ValueError):
        noted = read_all(lock_file(file, _OWNER), MOST_POINTER_BYTES).decode(errors="replace")
        return f" ({noted})" if noted else ""
    return ""
