"""The safetensors format: its header, read, checked and written.

A file is 8 bytes (little-endian length of the header), the header (JSON in UTF-8, padded with
spaces to a multiple of 8 bytes) and the tensors' bytes, without gaps. See
https://github.com/huggingface/safetensors. It contains no executable code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gtensor.checkpoint.errors import CheckpointError
from gtensor.system.files import MOST_HEADER_BYTES

LENGTH_BYTES = 8
MOST_DIMENSIONS = 64  # of a NumPy array
MOST_BYTES = 2**63 - 1
METADATA = "__metadata__"
ZIP = b"PK\x03\x04"  # as torch.save and numpy.savez begin

# By growing alignment, in the reference implementation's order: files are written by it, backwards.
CODES: dict[str, np.dtype] = {code: np.dtype(kind) for code, kind in (
    ("BOOL", np.bool_), ("U8", "u1"), ("I8", "i1"),
    ("F8_E5M2", ml_dtypes.float8_e5m2), ("F8_E4M3", ml_dtypes.float8_e4m3fn),
    ("F8_E8M0", ml_dtypes.float8_e8m0fnu), ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
    ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
    ("I16", "<i2"), ("U16", "<u2"), ("F16", "<f2"), ("BF16", ml_dtypes.bfloat16),
    ("I32", "<i4"), ("U32", "<u4"), ("F32", "<f4"), ("C64", "<c8"),
    ("F64", "<f8"), ("I64", "<i8"), ("U64", "<u8"))}
_CODE_OF = {dtype: code for code, dtype in CODES.items()}
_FIELDS = {"dtype", "shape", "data_offsets"}
_RANK = {code: rank for rank, code in enumerate(CODES)}


class Entry(NamedTuple):
    """A tensor in a file: its bytes are [start, stop), counted from the file's first byte."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(NamedTuple):
    """The contents of a file: tensors by name in the order of their bytes, and texts by name."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def code_of(dtype: np.dtype) -> str | None:
    """The format's name of a dtype, None if it has none."""
    return _CODE_OF.get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)


def header_length(first: bytes, size: int, path: object) -> int:
    """The header's bytes, from the first 8 of a file of `size` bytes.

    Raises CheckpointError if the file is too short for it.
    """
    if len(first) < LENGTH_BYTES:
        raise CheckpointError(f"{path} is not a safetensors file: it has {size} bytes, wanted at "
                              f"least {LENGTH_BYTES}")
    length = int.from_bytes(first, "little")
    if first.startswith(ZIP):
        raise CheckpointError(
            f"{path} is a zip archive, as torch.save and numpy.savez write, not a safetensors "
            "file; read it there and write it by "
            "safetensors.torch.save_file(torch.load(path), new) or "
            "gt.checkpoint.save_file(dict(numpy.load(path)), new)")
    if length > MOST_HEADER_BYTES:
        raise CheckpointError(f"{path} is not a safetensors file: it says that its header has "
                              f"{length} bytes, wanted at most {MOST_HEADER_BYTES}")
    if length > size - LENGTH_BYTES:
        raise CheckpointError(f"{path} is not a whole checkpoint: its header should have "
                              f"{length} bytes, the file has {size}")
    return length


def parse(text: bytes | bytearray, size: int, path: object) -> Header:
    """The header of a file of `size` bytes, checked down to the last byte of the last tensor.

    Raises CheckpointError naming what is wrong: no such JSON, a name twice, an unknown dtype, a
    shape that does not fit its bytes, gaps, overlaps, a truncated or too long file.
    """
    try:
        found = _json(text)
        metadata = _texts(found.pop(METADATA, None))
        start = LENGTH_BYTES + len(text)
        entries = {name: _entry(name, about, start) for name, about in found.items()}
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {_told(error)}") from None
    ordered = sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop))
    end = start
    for name, entry in ordered:
        if entry.start != end:
            raise CheckpointError(f"{path} is not a safetensors file: the bytes of {name!r} start "
                                  f"at {entry.start - start}, wanted {end - start}, where those "
                                  "before end")
        end = entry.stop
    if end != size:
        what = "not a whole checkpoint" if size < end else "longer than its header says"
        raise CheckpointError(f"{path} is {what}: it has {size} bytes, wanted {end}")
    return Header(dict(ordered), metadata)


def build(
    tensors: Iterable[tuple[str, np.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, Entry]]:
    """The header of a file with such tensors (name, dtype, shape), and the place of each.

    Raises TypeError or ValueError for names, dtypes and metadata that the format cannot store.
    """
    wanted = sorted(((_code(name, dtype), name, shape) for name, dtype, shape in tensors),
                    key=lambda one: (-_RANK[one[0]], one[1]))
    about: dict[str, Any] = {}
    if metadata:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"metadata {key!r}: {type(value).__name__} given; wanted texts by "
                                "text")
        about[METADATA] = dict(metadata)
    offsets, end = [], 0
    for code, name, shape in wanted:
        begin, end = end, end + prod(shape) * CODES[code].itemsize
        offsets.append((begin, end))
        about[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
    try:
        text = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a name or text with half a character given ({error.reason}); wanted "
                         "Unicode") from None
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER_BYTES:
        raise ValueError(f"names, shapes and metadata of {len(text)} bytes given; wanted at most "
                         f"{MOST_HEADER_BYTES}")
    base = LENGTH_BYTES + len(text)
    entries = {name: Entry(CODES[code], shape, base + begin, base + stop)
               for (code, name, shape), (begin, stop) in zip(wanted, offsets, strict=True)}
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, entries


def _code(name: str, dtype: np.dtype) -> str:
    if not isinstance(name, str) or name == METADATA:
        raise ValueError(f"tensor name {name!r} given; wanted a text other than {METADATA!r}")
    code = code_of(dtype)
    if code is None:
        raise TypeError(f"{name!r} has dtype {dtype}, which safetensors files cannot hold; wanted "
                        f"one of {', '.join(d.name for d in CODES.values())}")
    return code


def _json(text: bytes | bytearray) -> dict[str, Any]:
    if text[:1] != b"{":
        raise ValueError("its header does not start with '{'")
    found = json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    if b"\\u" in text:  # half a character, written as an escape, is no text
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"its header has {counts.most_common(1)[0][0]!r} twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"its header holds {name}")


def _texts(found: object) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"its {METADATA} is not texts by name")
    return found


def _entry(name: str, about: object, base: int) -> Entry:
    if not isinstance(about, dict) or not about.keys() >= _FIELDS:
        raise ValueError(f"{name!r} is not described by dtype, shape and data_offsets")
    dtype = CODES.get(about["dtype"]) if isinstance(about["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"{name!r} has dtype {about['dtype']!r}; wanted one of {', '.join(CODES)}")
    shape, offsets = about["shape"], about["data_offsets"]
    if not _sizes(shape) or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"{name!r} has a shape that is not up to {MOST_DIMENSIONS} whole numbers")
    if not _sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{name!r} has data_offsets that are not two whole numbers")
    begin, end = offsets
    size = prod(shape) * dtype.itemsize
    # Also an array without elements must have sizes that an array can have.
    if (size or prod(n for n in shape if n) * dtype.itemsize) > MOST_BYTES:
        raise ValueError(f"{name!r} has a shape of more than {MOST_BYTES} bytes")
    if end - begin != size:
        raise ValueError(f"{name!r} of shape {tuple(shape)} and dtype {about['dtype']} has "
                         f"{end - begin} bytes, wanted {size}")
    return Entry(dtype, tuple(shape), base + begin, base + end)


def _sizes(values: object) -> bool:
    if not isinstance(values, list):
        return False
    for n in values:  # noqa: SIM110 - a generator would take most of the time of a large header
        if type(n) is not int or not 0 <= n <= MOST_BYTES:
            return False
    return True


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its header is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"its header is no JSON ({error.msg} at character {error.pos})"
    if isinstance(error, (UnicodeDecodeError, UnicodeEncodeError)):
        return f"its header is no UTF-8 ({error.reason})"
    return str(error)
