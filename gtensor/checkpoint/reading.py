"""Reading safetensors: one tensor, some or all, directly into their own memory.

Several threads read large data from the file into the buffers of the tensors, without a map of the
file or a second copy, so the peak of memory is the size of the tensors. Tensors of a GPU are copied
in pieces through one small buffer.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from gtensor.backend import Device, get_device
from gtensor.checkpoint.errors import CheckpointError
from gtensor.checkpoint.layout import LENGTH_BYTES, Entry, Header, header_length, parse
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.system.files import MOST_INDEX_BYTES, open_regular, opened, read_text, size_within

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, CudaArray

INDEX_SUFFIX = ".index.json"
PIECE_BYTES = 32 << 20  # what one thread reads at a time
PIECE_BUFFERS = 256  # small tensors that one call of the system fills; it takes at most 1024
MOST_THREADS = 4  # page faults and copies run side by side; no gain where others use all cores
MOST_TRIES = 100  # to open a checkpoint in shards that is being replaced
PathLike = str | os.PathLike[str]
Opened = tuple[dict[str, tuple["_File", Entry]], dict[str, str]]  # the tensors' places, the texts


class Piece(NamedTuple):
    """Consecutive bytes of a file and the buffers to read them into."""

    file: _File
    offset: int
    buffers: list[memoryview]


class safe_open:
    """A safetensors file, or an index of several, opened to read single tensors by name.

        with gt.checkpoint.safe_open("model.safetensors") as file:
            file.keys()                         # names, nothing else was read
            weight = file.get_tensor("weight")  # a tensor of its own memory
            rows = file.get_array("table")[:3]  # NumPy over the file: only what is touched is read

    Args:
        path: of the file or of `*.safetensors.index.json`; a file that was written in shards is
            also found by the name it was saved under.
        device: where tensors are put; the default device if None.

    Raises FileNotFoundError if there is none, OSError if it is no regular file, CheckpointError if
    a header or the index is broken or larger than `gtensor.system.files` allows.
    """

    def __init__(self, path: PathLike, device: Device | str | None = None) -> None:
        self.path = Path(path)
        self.device = get_device(device)
        self._files: list[_File] = []
        try:
            self._where, self._metadata = self._open()
        except BaseException:  # undone
            self.close()
            raise

    def _open(self) -> Opened:
        for _ in range(MOST_TRIES):
            index = index_of(self.path)
            try:
                found = self._open_file() if index is None else self._open_shards(index)
            except FileNotFoundError:
                if index_of(self.path) == index:
                    raise
                found = None  # a writer changed from one file to shards, or back
            if found is not None:
                return found
            self.close()
            self._files.clear()
        raise CheckpointError(f"{self.path} was replaced {MOST_TRIES} times while it was opened")

    def _open_file(self) -> Opened:
        file = self._add(self.path)
        return {name: (file, e) for name, e in file.header.entries.items()}, file.header.metadata

    def _open_shards(self, index: Path) -> Opened | None:
        """All shards; None if a writer replaced the index meanwhile: the shards may then be removed
        or belong to the new index."""
        with opened(index) as held:  # kept open, so that no other file gets its inode number
            try:
                names, metadata = _parse_index(held, index)
                files = {shard: self._add(index.parent / shard)
                         for shard in dict.fromkeys(names.values())}
                where = {}
                for name, shard in names.items():
                    entry = files[shard].header.entries.get(name)
                    if entry is None:
                        raise CheckpointError(f"{index} says that {name!r} is in {shard}, where it "
                                              "is not")
                    where[name] = files[shard], entry
            except (FileNotFoundError, CheckpointError):
                if _stands(held, index):
                    raise
                return None
            return (where, metadata) if _stands(held, index) else None

    def _add(self, path: Path) -> _File:
        self._files.append(_File(path, len(self._files)))
        return self._files[-1]

    # -- what it holds ----------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """The tensors' names, in the order of their bytes."""
        return list(self._where)

    def metadata(self) -> dict[str, str]:
        """The texts that were saved with the tensors."""
        return dict(self._metadata)

    def entry(self, name: str) -> Entry:
        """A tensor's dtype, shape and position. Raises KeyError if there is no such tensor."""
        return self._find(name)[1]

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    # -- values -----------------------------------------------------------------------------------

    def get_tensor(self, name: str, device: Device | str | None = None) -> Tensor:
        """A tensor in new memory. Raises KeyError if there is none of that name."""
        return self.get_tensors([name], device)[name]

    def get_tensors(
        self, names: Iterable[str] | None = None, device: Device | str | None = None
    ) -> dict[str, Tensor]:
        """These tensors (all, if None) by name, each in new memory.

        Raises KeyError for an unknown name, CheckpointError if the file ends early.
        """
        wanted = {name: self._find(name) for name in (self._where if names is None else names)}
        place = self.device if device is None else get_device(device)
        arrays = {}
        # Large ones first: small ones fit into the remaining gaps of the arena's segments.
        for name in sorted(wanted, key=lambda name: _size(wanted[name][1]), reverse=True):
            file, entry = wanted[name]
            arrays[name] = (place.empty(entry.shape, entry.dtype, "load") if place.type == "cpu"
                            else place.path("load", _upload)(place, file, entry))
        if place.type == "cpu":
            _fill([(*wanted[name], array) for name, array in arrays.items()])
        return {name: wrap(arrays[name], place) for name in wanted}

    def get_array(self, name: str) -> np.ndarray:
        """A read-only NumPy array over the mapped file: bytes are read on access.

        It keeps the file mapped, also after the file is replaced; an access to a file that was
        truncated kills the process. Raises ValueError if the file is closed.
        """
        file, entry = self._find(name)
        if entry.start == entry.stop:
            return np.empty(entry.shape, entry.dtype)
        return file.map(entry.start, entry.stop).view(entry.dtype).reshape(entry.shape)

    def _find(self, name: str) -> tuple[_File, Entry]:
        found = self._where.get(name)
        if found is None:
            raise KeyError(f"{self.path} holds no tensor {name!r}; it has {len(self)} others")
        return found

    # -- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files; tensors and arrays stay."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self.close()


def load_file(path: PathLike, device: Device | str | None = None) -> dict[str, Tensor]:
    """All tensors of a safetensors file (or of a sharded one) by name, each in new memory.

    The peak of memory is the size of the file. Raises as `safe_open`.
    """
    with safe_open(path, device) as file:
        return file.get_tensors()


def index_of(path: Path) -> Path | None:
    """The index of a checkpoint in shards, None if the path is a file of tensors itself."""
    if path.name.endswith(INDEX_SUFFIX):
        return path
    index = Path(f"{os.path.realpath(path)}{INDEX_SUFFIX}")
    return index if not os.path.exists(path) and os.path.exists(index) else None


def read_index(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The shard of every tensor, and the texts, of a `*.safetensors.index.json`.

    Raises CheckpointError if it is broken or names a file outside its folder.
    """
    with opened(path) as descriptor:
        return _parse_index(descriptor, path)


def _parse_index(descriptor: int, path: Path) -> tuple[dict[str, str], dict[str, str]]:
    try:
        size = size_within(descriptor, MOST_INDEX_BYTES)
        found = json.loads(read_text(descriptor, 0, size).decode("utf-8"))
        names, metadata = found["weight_map"], found.get("metadata") or {}
        if not all(isinstance(shard, str) for shard in names.values()):
            raise ValueError("weight_map is not file names by name")
        for shard in dict.fromkeys(names.values()):
            if not _is_file_name(shard):
                raise ValueError(f"{shard!r} is no file of its folder")
        return names, {k: v for k, v in metadata.items() if isinstance(v, str)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no index of safetensors files: {error}") from None


def _is_file_name(name: str) -> bool:
    """Whether this can be a file's name, without a folder."""
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:  # half a character
        return False
    return Path(name).name == name and "\0" not in name and 0 < length <= 255 and name != ".."


def _stands(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


class _File:
    """One open file and its header."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number  # among the shards
        self.descriptor = open_regular(path)
        try:
            self.header = self._header()
        except BaseException:  # undone
            self.close()
            raise

    def _header(self) -> Header:
        size = os.fstat(self.descriptor).st_size
        length = header_length(os.pread(self.descriptor, LENGTH_BYTES, 0), size, self.path)
        try:
            text = read_text(self.descriptor, LENGTH_BYTES, LENGTH_BYTES + length)
        except ValueError as error:
            raise CheckpointError(f"{self.path} is not a safetensors file: its header is cut or "
                                  f"no text ({error})") from None
        return parse(text, size, self.path)

    def read(self, buffers: list[memoryview], offset: int) -> None:
        """Fill the buffers, one after the other, with the bytes from `offset` on."""
        rest = [buffer for buffer in buffers if len(buffer)]
        while rest:
            got = os.preadv(self.descriptor, rest, offset)
            if got == 0:
                raise self._cut_at(offset)
            offset += got
            while rest and got >= len(rest[0]):
                got -= len(rest.pop(0))
            if got:
                rest[0] = rest[0][got:]

    def map(self, start: int, stop: int) -> np.ndarray:
        """Bytes of the open file, even if its path now has another file."""
        if self.descriptor < 0:
            raise ValueError(f"{self.path} is closed; wanted an open file")
        size = os.fstat(self.descriptor).st_size
        if size < stop:
            raise self._cut_at(size)
        begin = start - start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self.descriptor, stop - begin, access=mmap.ACCESS_READ, offset=begin)
        return np.frombuffer(mapped, np.uint8)[start - begin:]

    def _cut_at(self, end: int) -> CheckpointError:
        return CheckpointError(f"{self.path} is not a whole checkpoint: it ended at byte {end} "
                               "while it was read")

    def close(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            with suppress(OSError):
                os.close(descriptor)


def _size(entry: Entry) -> int:
    return entry.stop - entry.start


# -- bytes into buffers ----------------------------------------------------------------------------


def _fill(arrays: list[tuple[_File, Entry, np.ndarray]]) -> None:
    """Read every array's bytes from its file, in pieces, by threads if there are several."""
    pieces = _pieces(arrays)
    threads = min(len(pieces), MOST_THREADS, len(os.sched_getaffinity(0)))
    if threads <= 1:
        for piece in pieces:
            piece.file.read(piece.buffers, piece.offset)
        return
    pool = ThreadPoolExecutor(threads, "gtensor-load")
    try:
        for done in [pool.submit(p.file.read, p.buffers, p.offset) for p in pieces]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _pieces(arrays: list[tuple[_File, Entry, np.ndarray]]) -> list[Piece]:
    """The arrays' bytes in pieces for threads: large arrays are cut, small ones joined."""
    pieces: list[Piece] = []
    filled = 0  # bytes of the last piece
    for file, entry, array in sorted(arrays, key=lambda one: (one[0].number, one[1].start)):
        offset, rest = entry.start, _bytes_of(array)
        while len(rest):
            last = pieces[-1] if pieces else None
            if (last is None or last.file is not file or last.offset + filled != offset
                    or filled >= PIECE_BYTES or len(last.buffers) >= PIECE_BUFFERS):
                last, filled = Piece(file, offset, []), 0
                pieces.append(last)
            room = PIECE_BYTES - filled
            part, rest = (rest, rest[:0]) if len(rest) <= room else (rest[:room], rest[room:])
            last.buffers.append(part)
            filled += len(part)
            offset += len(part)
    return pieces


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _upload(place: Device, file: _File, entry: Entry) -> Array:
    """An array of a GPU with a tensor's bytes, copied through one small host buffer."""
    size = entry.stop - entry.start
    raw: CudaArray = place.empty((size,), np.uint8, "load")
    staging = np.empty(min(size, PIECE_BYTES), np.uint8)
    for begin in range(0, size, PIECE_BYTES):
        part = staging[:size - begin]
        file.read([part.data], entry.start + begin)
        raw[begin:begin + len(part)].set(part)
    return raw.view(entry.dtype).reshape(entry.shape)
