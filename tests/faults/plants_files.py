"""Mutations of the readers of files and states; see `plants.py`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import rich.console

from gtensor.checkpoint import layout, reading, writing
from gtensor.creation import generators
from gtensor.memory.trace import plain_pickle
from gtensor.system import atomic, documents, files
from gtensor.system.documents import Facts

Context = AbstractContextManager[Any]


def header_unbounded() -> Context:
    """the length of a header is not bounded"""
    return patch.object(layout, "MOST_HEADER_BYTES", 1 << 62)


def holes_read() -> Context:
    """reading continues over null characters of a text"""
    def read(descriptor: int, start: int, stop: int) -> bytearray:
        return bytearray().join(files.pieces(descriptor, start, stop))
    return patch.object(reading, "read_text", read)


def pipe_read() -> Context:
    """the type of an opened file is not checked"""
    return patch.object(files, "check_regular", lambda found, path: None)


def python_unpickler_used() -> Context:
    """Python's unpickler reads snapshots"""
    return patch.object(plain_pickle, "load", lambda pieces: pickle.loads(b"".join(pieces)))


def facts_unchecked() -> Context:
    """a text in a snapshot may be anything"""
    return patch.object(Facts, "text", lambda self, key, default=None: self.found.get(key, default))


@contextmanager
def names_unprinted() -> Iterator[None]:
    """names are shown with their control characters"""
    with patch.object(documents, "printable", str), patch.object(files, "printable", str):
        yield


def names_as_markup() -> Context:
    """rich interprets markup in names"""
    real = rich.console.Console
    return patch.object(rich.console, "Console",
                        lambda **options: real(**{**options, "markup": True}))


def buffer_position_unchecked() -> Context:
    """the position in the generator's buffer is not checked"""
    return patch.dict(generators._FIELDS, {("buffer_pos",): (1, 1 << 62)})


def killed_rotation_left() -> Context:
    """the next writer does not remove what a killed one noted"""
    return patch.object(writing, "_turn", lambda path: atomic.locked(path, writing._family(path)))


def folder_named() -> Context:
    """errors of the system do not name the file"""
    return patch.object(atomic, "naming", lambda path: nullcontext())
