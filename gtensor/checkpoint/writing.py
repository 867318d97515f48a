"""Writing safetensors atomically: one file or shards, tensor by tensor."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gtensor.backend import Device, device_of, refuse_mask
from gtensor.checkpoint.errors import CheckpointError
from gtensor.checkpoint.layout import build
from gtensor.checkpoint.reading import INDEX_SUFFIX, PathLike, read_index
from gtensor.engine.handle.tensor import Tensor
from gtensor.memory import size_of
from gtensor.system.atomic import Lock, locked, mode_of, naming, replacing, sync_folder, write

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

SUFFIX = ".safetensors"
Put = Callable[[Path], AbstractContextManager[int]]  # `replacing`, for this checkpoint


class Item(NamedTuple):
    """An array to be written, and its device."""

    array: Array
    device: Device


def save_file(
    tensors: Mapping[str, object], path: PathLike, metadata: Mapping[str, str] | None = None, *,
    max_shard_size: int | str | None = None,
) -> None:
    """Write tensors by name as safetensors, atomically: after a kill the old file is complete.

    The bytes equal those of the safetensors package. It needs memory for at most one more tensor
    (none for contiguous ones on the CPU). An earlier checkpoint of this name, in one file or in
    shards, is removed once the new one is complete, and the new one gets its permissions. Several
    writers of one name wait for each other.

    Args:
        tensors: Tensors or arrays by name, on any device.
        metadata: texts by name.
        max_shard_size: bytes of tensors in one file, a number or a text as "5GB" or "500MiB". More
            are written as `name-00001-of-00003.safetensors` ... and, last of all,
            `name.safetensors.index.json`, as Hugging Face's libraries do; over existing shards, as
            `name-0123abcd-00001-of-00003.safetensors`. A tensor is never cut.

    Raises TypeError or ValueError for values that the format cannot store, OSError if the disk is
    full, the folder cannot be written, or the path has something else than a regular file.
    """
    texts = dict(metadata or {})
    write_tensors(tensors, Path(path), texts, texts, max_shard_size)


def write_tensors(
    tensors: Mapping[str, object], path: Path, metadata: dict[str, str],
    shard_metadata: dict[str, str], max_shard_size: int | str | None,
) -> None:
    """`save_file`, with other metadata for the shards than for the index."""
    items = {name: _item(name, value) for name, value in tensors.items()}
    most = None if max_shard_size is None else size_of(max_shard_size)
    path = Path(os.path.realpath(path))
    build(_described(items), metadata)  # what cannot be written is refused before anything is
    index = Path(f"{path}{INDEX_SUFFIX}")
    for place in (path, index):
        mode_of(place)  # folders, pipes and devices are refused too
    with naming(path), _turn(path) as lock:
        old = sorted(filter(_shard_of(path), _shards_in(index)))
        modes = map(mode_of, (path, *(path.with_name(name) for name in old), index))
        put = partial(replacing, owner=_family(path),
                      mode=next((mode for mode in modes if mode is not None), None))
        shards = list(_split(items, most))
        if len(shards) == 1:
            with _noting(lock, path, old):
                _write_one(items, path, metadata, put)
                if os.path.exists(index):
                    os.unlink(index)
            return
        files = _shard_paths(path, len(shards), lock.held and not os.path.exists(index))
        names = {name: file.name for file, shard in zip(files, shards, strict=True)
                 for name in shard}
        with _noting(lock, path, [*old, *names.values()]):
            for file, shard in zip(files, shards, strict=True):
                _write_one(shard, file, shard_metadata, put)
            total = sum(item.array.nbytes for item in items.values())
            said = {"metadata": {"total_size": total, **metadata}, "weight_map": names}
            with put(index) as descriptor:
                write(descriptor, json.dumps(said, indent=1).encode())
            path.unlink(missing_ok=True)


def _item(name: str, value: Any) -> Item:
    if isinstance(value, Tensor):
        return Item(value._array, value.device)
    refuse_mask(value, repr(name))
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__cuda_array_interface__"):
        return Item(value, device_of(value))
    raise TypeError(f"{name!r} is {type(value).__name__}; wanted a Tensor or an array")


def _described(items: Mapping[str, Item]) -> Iterator[tuple[str, np.dtype, tuple[int, ...]]]:
    return ((name, np.dtype(item.array.dtype), tuple(item.array.shape))
            for name, item in items.items())


def _write_one(
    items: Mapping[str, Item], path: Path, metadata: Mapping[str, str], put: Put
) -> None:
    """One file."""
    first, entries = build(_described(items), metadata)
    with put(path) as descriptor:
        write(descriptor, first)
        for name, entry in entries.items():
            if entry.stop > entry.start:
                write(descriptor, _flat(items[name], entry.dtype))


def _flat(item: Item, dtype: np.dtype) -> np.ndarray:
    """The bytes of an array in C order, little-endian; its own memory if they lie so already."""
    values = item.device.to_numpy(item.array) if item.device.type != "cpu" else item.array
    return np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)


# -- shards ----------------------------------------------------------------------------------------


def _split(items: dict[str, Item], most: int | None) -> Iterator[dict[str, Item]]:
    """The items in parts of at most so many bytes, or of a single item; at least one part."""
    part: dict[str, Item] = {}
    size = 0
    for name, item in items.items():
        if part and most is not None and size + item.array.nbytes > most:
            yield part
            part, size = {}, 0
        part[name] = item
        size += item.array.nbytes
    yield part


def _stem(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def _shard_paths(path: Path, count: int, plain: bool) -> list[Path]:
    """Unused names of shards: the old shards must stay until the new index is in place.

    Hugging Face's names if `plain`; else with a random mark, so that two writers never share one,
    and a reader of the old index never opens a new shard.
    """
    mark = "" if plain else f"-{secrets.token_hex(4)}"
    while True:
        files = [path.with_name(f"{_stem(path)}{mark}-{number:05}-of-{count:05}{SUFFIX}")
                 for number in range(1, count + 1)]
        if not any(os.path.lexists(file) for file in files):
            return files
        mark = f"-{secrets.token_hex(4)}"


def _family(path: Path) -> str:
    """What the checkpoints of a run share: the name without a step's number (see `Rotation`)."""
    return re.sub(r"-\d{6,}$", "", _stem(path))


def _shard_of(path: Path) -> Callable[[str], Any]:
    """Whether a shard of this family can have a name: an index may name any file."""
    return re.compile(rf"{re.escape(_family(path))}(-\d{{6,}})?(-[0-9a-f]{{8}})?-\d{{5}}-of-\d{{5}}"
                      rf"{re.escape(SUFFIX)}").fullmatch


def _shards_in(index: Path) -> set[str]:
    """The files that an index names, none if there is no index or a broken one."""
    with suppress(CheckpointError):
        try:
            return set(read_index(index)[0].values())
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
                raise
    return set()


def remove(path: Path) -> None:
    """Remove a checkpoint, in one file or in shards; an index before its shards."""
    index = Path(f"{path}{INDEX_SUFFIX}")
    with _turn(path) as lock, _noting(lock, path, _shards_in(index)):
        for gone in (path, index):
            gone.unlink(missing_ok=True)
        sync_folder(path.parent)


@contextmanager
def _turn(path: Path) -> Iterator[Lock]:
    """Hold the lock of a family's files, and remove the shards that a killed writer noted in it."""
    with locked(path, _family(path)) as lock:
        if lock.held and os.fstat(lock.descriptor).st_size:
            _remove_loose(path, _shards_in(lock.path))
            os.ftruncate(lock.descriptor, 0)
        yield lock


@contextmanager
def _noting(lock: Lock, path: Path, names: Iterable[str]) -> Iterator[None]:
    """Note shards that the block writes or removes, as an index does, for after a kill."""
    names = list(names)
    if names:
        write(lock.descriptor, json.dumps({"weight_map": dict(enumerate(names))}).encode())
    try:
        yield
    finally:
        _remove_loose(path, names)
        os.ftruncate(lock.descriptor, 0)


def _remove_loose(path: Path, names: Iterable[str]) -> None:
    """Remove those of a family's shards that no index of the folder names."""
    loose = set(filter(_shard_of(path), names)).intersection(os.listdir(path.parent))
    if not loose:
        return
    loose -= _shards_in(Path(f"{path}{INDEX_SUFFIX}"))
    for name in os.listdir(path.parent):
        if name.endswith(INDEX_SUFFIX) and os.path.isfile(path.with_name(name)):
            with suppress(PermissionError):
                loose -= _shards_in(path.with_name(name))
    for name in loose:
        path.with_name(name).unlink(missing_ok=True)
    sync_folder(path.parent)
