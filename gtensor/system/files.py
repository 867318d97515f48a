"""Untrusted files: only regular ones are opened, and the bytes read are bounded.

Every size of a file, and every size stated in it, is bounded here before it is used. The bounds are
far beyond the largest models and recordings. Without them a file of a few bytes could allocate all
memory, a pipe could block for ever, and a device file never end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

# A header as the reference implementation of safetensors bounds it: some million tensors.
MOST_HEADER_BYTES = 100_000_000
# An index names a tensor in about as many bytes as a header.
MOST_INDEX_BYTES = MOST_HEADER_BYTES
# A recording keeps a million events by default, which are some 100 MB of either form.
MOST_SNAPSHOT_BYTES = 1 << 30
# An export of Nsight Systems: a million kernels with their calls and ranges are some 200 MB.
MOST_EXPORT_BYTES = 1 << 34
# Lists and dicts of a pickled snapshot: for each event of a million three, and what else there is.
MOST_CONTAINERS = 10_000_000
# Of a pickled snapshot: segments, their blocks, frames of a block make 6.
MOST_DEPTH = 32
# Of a text in a snapshot: names of C++ templates have some thousand bytes, paths up to 4096.
MOST_TEXT_BYTES = 1 << 16
# Of an integer in a pickle: addresses have 8, and one more for the sign.
MOST_INTEGER_BYTES = 16
# A rotation's pointer is a name of a file and the end of a line.
MOST_POINTER_BYTES = 1 << 10

# Of a file's text in a table or a sentence: it may fill the terminal, and no more.
MOST_SHOWN = 1_000

PIECE_BYTES = 1 << 20  # of a file, read at a time

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
          stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor of a regular file, to be read and closed by the caller.

    Raises OSError, in one sentence, if there is none, it is something else, or not readable.
    """
    try:
        check_regular(os.stat(path), path)  # to open a device may already do something
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, f"there is no file {path}") from None
    except OSError as error:
        told = error.strerror or str(error)
        raise OSError(error.errno, told if str(path) in told else
                      f"{path} cannot be read: {told}") from None
    except ValueError as error:  # a name with a null character
        raise OSError(errno.EINVAL, f"{str(path)!r} names no file: {error}") from None
    try:
        check_regular(os.fstat(descriptor), path)
    except BaseException:  # undone
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """`open_regular`, closed at the end of the block."""
    descriptor = open_regular(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise OSError, in one sentence, unless that is what is known of a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(number, f"{path} is {kind}; wanted a regular file")


def size_within(descriptor: int, most: int) -> int:
    """The bytes of an open file. Raises ValueError for more than `most`."""
    size = os.fstat(descriptor).st_size
    if size > most:
        raise ValueError(f"it has {size} bytes, wanted at most {most}")
    return size


def pieces(descriptor: int, start: int, stop: int) -> Iterator[bytes]:
    """The bytes [start, stop) of a file in order. Raises ValueError if it ends before."""
    while start < stop:
        piece = os.pread(descriptor, min(PIECE_BYTES, stop - start), start)
        if not piece:
            raise ValueError(f"it ended at byte {start} while it was read")
        yield piece
        start += len(piece)


def read_text(descriptor: int, start: int, stop: int) -> bytearray:
    """Bytes [start, stop) of a file that should be text, which the caller has bounded.

    A sparse file may be large and have only holes, which read as null characters: the first one
    ends the reading. Raises ValueError for one, or if the file ends before.
    """
    found = bytearray()
    for piece in pieces(descriptor, start, stop):
        if b"\0" in piece:
            raise ValueError(f"a null character at byte {start + len(found) + piece.index(0)}")
        found += piece
    return found


def read_all(path: str | os.PathLike[str], most: int) -> bytearray:
    """A text file of at most `most` bytes. Raises OSError as `open_regular`, ValueError if more."""
    with opened(path) as descriptor:
        return read_text(descriptor, 0, size_within(descriptor, most))


def printable(text: str) -> str:
    """Text from a file, safe for a terminal or a page: unprintable characters become "?".

    So no name moves the cursor, changes colours or reverses the text beside it.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def brief(text: str) -> str:
    """`printable`, cut to `MOST_SHOWN` letters."""
    return printable(text) if len(text) <= MOST_SHOWN else f"{printable(text[:MOST_SHOWN])} ..."
