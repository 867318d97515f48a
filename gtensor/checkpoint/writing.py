"""Writing safetensors: one file or shards of a size, tensor by tensor, all or nothing."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gtensor.backend import Device, device_of
from gtensor.checkpoint.atomic import replacing, sweep, sync_folder, write, write_file
from gtensor.checkpoint.errors import CheckpointError
from gtensor.checkpoint.layout import build
from gtensor.checkpoint.reading import INDEX_SUFFIX, PathLike, read_index
from gtensor.core.tensor import Tensor

SUFFIX = ".safetensors"
UNITS = {"": 1, "B": 1, **{unit + "B": 1000**power for power, unit in enumerate("KMGT", 1)},
         **{unit + "IB": 1024**power for power, unit in enumerate("KMGT", 1)}}


class Item(NamedTuple):
    """An array to be written, where it lives."""

    array: Any
    device: Device

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


def save_file(
    tensors: Mapping[str, Any], path: PathLike, metadata: Mapping[str, str] | None = None, *,
    max_shard_size: int | str | None = None,
) -> None:
    """Write tensors by name as safetensors, atomically: a kill leaves the file that was there.

    The same bytes as the safetensors package writes. Beside what is there, memory for at most one
    tensor is needed (none for contiguous ones on the CPU). What was saved under this name before,
    in one file or in shards, is removed once the new one stands.

    Args:
        tensors: Tensors or arrays by name, on any device.
        metadata: texts by name.
        max_shard_size: bytes of tensors in one file, a number or a text as "5GB" or "500MiB". More
            are written as `name-00001-of-00003.safetensors` ... and, last of all,
            `name.safetensors.index.json`, as Hugging Face's libraries do. A tensor is never cut.

    Raises TypeError or ValueError for what the format cannot hold, OSError if the disk is full or
    the folder cannot be written.
    """
    texts = dict(metadata or {})
    write_tensors(tensors, Path(path), texts, texts, max_shard_size)


def write_tensors(
    tensors: Mapping[str, Any], path: Path, metadata: dict[str, str],
    shard_metadata: dict[str, str], max_shard_size: int | str | None,
) -> None:
    """`save_file`, where the shards themselves say something else than the whole."""
    items = {name: _item(name, value) for name, value in tensors.items()}
    most = None if max_shard_size is None else size_of(max_shard_size)
    path = Path(os.path.realpath(path))
    build(_described(items), metadata)  # what cannot be written is refused before anything is
    shards = list(_split(items, most))
    if len(shards) == 1:
        _write_one(items, path, metadata)
        _remove_shards(path, keep=())
        return
    total = sum(item.nbytes for item in items.values())
    files = _shard_paths(path, len(shards))
    try:
        for file, shard in zip(files, shards, strict=True):
            _write_one(shard, file, shard_metadata)
        index = {"metadata": {"total_size": total, **metadata}, "weight_map": {
            name: file.name for file, shard in zip(files, shards, strict=True) for name in shard}}
        write_file(f"{path}{INDEX_SUFFIX}", json.dumps(index, indent=1).encode())
    except BaseException:
        if not _points_to(path, files[0].name):  # an interrupt may come after the rename
            for file in files:
                with suppress(OSError):
                    os.unlink(file)
        raise
    with suppress(FileNotFoundError):
        os.unlink(path)
    _remove_shards(path, keep=[file.name for file in files])


def size_of(size: int | str) -> int:
    """Bytes of 500, "500", "500 MB" (10^6 each) or "5GiB" (2^30 each). Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(size).strip())
    if not found or found[2].upper() not in UNITS or float(found[1]) <= 0:
        raise ValueError(f"size {size!r} given; wanted bytes above 0, or a text as '5GB' or "
                         "'500MiB'")
    return int(float(found[1]) * UNITS[found[2].upper()])


def _item(name: str, value: Any) -> Item:
    if isinstance(value, Tensor):
        return Item(value._array, value.device)
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__cuda_array_interface__"):
        return Item(value, device_of(value))
    raise TypeError(f"{name!r} is {type(value).__name__}; wanted a Tensor or an array")


def _described(
    items: Mapping[str, Item]
) -> Iterator[tuple[str, np.dtype, tuple[int, ...]]]:
    return ((name, np.dtype(item.array.dtype), tuple(item.array.shape))
            for name, item in items.items())


def _write_one(items: Mapping[str, Item], path: Path, metadata: Mapping[str, str]) -> None:
    """One file."""
    first, entries = build(_described(items), metadata)
    with replacing(path) as descriptor:
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
        if part and most is not None and size + item.nbytes > most:
            yield part
            part, size = {}, 0
        part[name] = item
        size += item.nbytes
    yield part


def _shard_paths(path: Path, count: int) -> list[Path]:
    """Names that are not taken: until the new index stands, the old one's shards must stay."""
    stem = path.name.removesuffix(SUFFIX)
    while True:
        files = [path.with_name(f"{stem}-{number:05}-of-{count:05}{SUFFIX}")
                 for number in range(1, count + 1)]
        if not any(file.exists() for file in files):
            return files
        stem = f"{path.name.removesuffix(SUFFIX)}-{secrets.token_hex(4)}"


def _points_to(path: Path, shard: str) -> bool:
    """Whether the index of the checkpoint at `path` is the one that names this shard."""
    try:
        return shard in read_index(Path(f"{path}{INDEX_SUFFIX}"))[0].values()
    except (OSError, CheckpointError):
        return False


def _remove_shards(path: Path, keep: Iterable[str]) -> None:
    """Remove what an earlier checkpoint of this name left: its index if it is not ours, shards."""
    kept = set(keep)
    removed = False
    if not kept:
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{INDEX_SUFFIX}")
            removed = True
    stem = re.escape(path.name.removesuffix(SUFFIX))
    shard = rf"{stem}(-[0-9a-f]{{8}})?-\d{{5}}-of-\d{{5}}{re.escape(SUFFIX)}"
    sweep(path.parent, shard)
    for name in os.listdir(path.parent):
        if re.fullmatch(shard, name) and name not in kept:
            with suppress(FileNotFoundError):
                os.unlink(path.with_name(name))
                removed = True
    if removed:
        sync_folder(path.parent)
