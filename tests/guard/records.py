"""The recorded files: how they are written, read and compared with what was measured.

Small arrays are recorded whole, larger ones as their dot products with eight fixed vectors. A dot
product may be off by what the tolerance of the array's dtype allows its elements.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gtensor.testing.compare import TOLERANCES

from .cases import names
from .measure import Counts, Measured

HERE = Path(__file__).resolve().parent
VALUES, COUNTS, LAUNCHES = (HERE / name for name in ("values.npz", "counts.json", "launches.json"))
WHOLE, PRODUCTS = 24, 8  # elements of an array that is recorded whole; dot products of others
NUMPYS = ("arrays", "bytes", "peak")  # counts that NumPy's own temporaries are part of
_SINGLE = (np.dtype(np.float32), np.dtype(np.complex64))


# -- values ----------------------------------------------------------------------------------------


def numbers(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is recorded of an array, in float64, and how far each number may be off."""
    rtol, atol = TOLERANCES.get(array.real.dtype, (0.0, 0.0))
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    flat = array.astype(np.float64).reshape(-1)
    finite = np.where(np.isfinite(flat), flat, 0.0)
    allowed = atol + rtol * np.abs(finite)
    if flat.size <= WHOLE:
        return flat, allowed
    vectors = _vectors(flat.size)
    marked = np.nan_to_num(flat, nan=3.0, posinf=5.0, neginf=-7.0)
    return (vectors * marked).sum(1), (np.abs(vectors) * allowed).sum(1)


@cache
def _vectors(size: int) -> np.ndarray:
    """Small whole numbers, so that sums of whole numbers are exact."""
    return np.random.default_rng(size).integers(-3, 4, (PRODUCTS, size)).astype(np.float64)


def described(array: np.ndarray) -> str:
    return f"{array.dtype.name}{array.shape}".replace(" ", "")


def packed(found: dict[str, Measured]) -> dict[str, np.ndarray]:
    """The numbers of an op's runs one after another: those of single precision, and the others."""
    parts: dict[str, list[np.ndarray]] = {"single": [], "double": []}
    for run in found.values():
        for _, array in run.values:
            parts[_kind(array)].append(numbers(array)[0])
    return {kind: np.concatenate(given).astype("<f4" if kind == "single" else "<f8")
            for kind, given in parts.items() if given}


def _kind(array: np.ndarray) -> str:
    return "single" if array.dtype in _SINGLE else "double"


def line(run: Measured) -> Counts:
    """A run's line of the counts, with what its values are."""
    return run.counts | {"values": "; ".join(f"{what} {described(a)}" for what, a in run.values)}


# -- files -----------------------------------------------------------------------------------------


def write_json(path: Path, lines: dict[str, Counts], **head: Any) -> None:
    """One line per run, in the order of their keys."""
    texts = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True, separators=(', ', ': '))}"
             for key, value in [*head.items(), *sorted(lines.items())]]
    path.write_text("{\n" + ",\n".join(texts) + "\n}\n")


def write_values(path: Path, members: dict[str, np.ndarray]) -> None:
    """As np.savez_compressed does, with the same bytes for the same values."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, array in sorted(members.items()):
            memory = io.BytesIO()
            np.lib.format.write_array(memory, array, allow_pickle=False)
            entry = zipfile.ZipInfo(name + ".npy", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, memory.getvalue())


def member(name: str, kind: str) -> str:
    """The name in the archive of an op's numbers."""
    return f"{zlib.crc32(name.encode()):08x} {kind}"


@cache
def recorded(path: Path) -> dict[str, dict[str, Counts]]:
    """Op -> its lines of a file of counts, by run; what is not a run's is under ""."""
    grouped: dict[str, dict[str, Counts]] = {}
    for key, value in json.loads(path.read_text()).items():
        name = key.rsplit(" ", 2)[0] if isinstance(value, dict) else ""
        grouped.setdefault(name, {})[key] = value
    return grouped


@cache
def _archive() -> Any:
    return np.load(VALUES)


def recorded_numbers(name: str) -> dict[str, np.ndarray]:
    archive = _archive()
    return {kind: archive[member(name, kind)] for kind in ("single", "double")
            if member(name, kind) in archive}


# -- comparison ------------------------------------------------------------------------------------


def differences(found: dict[str, Counts], wanted: dict[str, Counts],
                left_out: Iterable[str] = ()) -> list[str]:
    """One line for each count that is another."""
    lines = []
    for key in sorted(found.keys() | wanted.keys()):
        if key not in wanted or key not in found:
            lines.append(f"{key}: {'not recorded' if key in found else 'recorded, but not run'}")
            continue
        now, before = (dict(_flat(side[key], frozenset(left_out))) for side in (found, wanted))
        lines += [f"{key}, {name}: {now.get(name, 0)!r}, recorded {before.get(name, 0)!r}"
                  for name in sorted(now.keys() | before.keys())
                  if now.get(name, 0) != before.get(name, 0)]
    return lines


def _flat(value: Any, left_out: frozenset[str], path: str = "") -> Iterable[tuple[str, Any]]:
    items = (value.items() if isinstance(value, dict) else
             ((str(i), v) for i, v in enumerate(value)))
    for name, inner in items:
        where = f"{path} {name}".strip()
        if name in left_out:
            continue
        if isinstance(inner, (dict, list)):
            yield from _flat(inner, left_out, where)
        else:
            yield where, inner


def value_differences(found: dict[str, Measured], wanted: dict[str, np.ndarray]) -> list[str]:
    """One line for each array that is further off than its dtype's tolerance."""
    lines = []
    at = {"single": 0, "double": 0}
    for key, run in found.items():
        for what, array in run.values:
            given, allowed = numbers(array)
            kind = _kind(array)
            recorded = wanted.get(kind, np.empty(0))[at[kind]:at[kind] + given.size]
            at[kind] += given.size
            if recorded.size != given.size:
                lines.append(f"{key}, {what}: {given.size} numbers, recorded {recorded.size}")
                continue
            if kind == "single":
                given = given.astype(np.float32)
            with np.errstate(invalid="ignore"):
                off = np.abs(given - recorded.astype(np.float64))
                bad = ~((off <= allowed) | (given == recorded)
                        | (np.isnan(given) & np.isnan(recorded)))
            if bad.any():
                i = int(np.argmax(bad))
                lines.append(f"{key}, {what} {described(array)}: number {i} is {given[i]:.12g}, "
                             f"recorded {recorded[i]:.12g} (allowed {allowed[i]:.3g})")
    return lines + [f"{kind}: {wanted[kind].size} numbers recorded, {at[kind]} measured"
                    for kind in wanted if wanted[kind].size != at[kind]]


def changes(name: str, found: dict[str, Measured]) -> list[str]:
    """What an op gives and takes now, and did not when it was recorded."""
    counts = recorded(COUNTS)
    same = counts[""]["numpy"] == numpy_version()
    return (differences({key: line(run) for key, run in found.items()}, counts.get(name, {}),
                        () if same else NUMPYS)
            + value_differences(found, recorded_numbers(name)))


def all_changes(measured: Callable[[str], dict[str, Measured]]) -> list[str]:
    """The changes of all ops on the CPU, with those that are recorded and are no more."""
    gone = recorded(COUNTS).keys() - {"", *names()}
    return [f"{name}: recorded, but there is no such op" for name in sorted(gone)] + [
        changed for name in names() for changed in changes(name, measured(name))]


def launch_changes(name: str, found: dict[str, Counts]) -> list[str]:
    """What an op takes of a host device now, and did not when it was recorded."""
    return differences(found, recorded(LAUNCHES).get(name, {}))


def all_launch_changes(measured: Callable[[str], dict[str, Counts]]) -> list[str]:
    """The changes of all ops on a host device, with those that are recorded and are no more."""
    gone = recorded(LAUNCHES).keys() - {*names()}
    return [f"{name}: recorded, but there is no such op" for name in sorted(gone)] + [
        changed for name in names() for changed in launch_changes(name, measured(name))]


def numpy_version() -> str:
    """Another one may make other temporaries; then counts of NumPy's arrays are not compared."""
    return ".".join(np.__version__.split(".")[:2])


# -- writing ---------------------------------------------------------------------------------------


def write_cpu(measured: Callable[[str], dict[str, Measured]]) -> None:
    """Measure every op on the CPU and record it."""
    lines: dict[str, Counts] = {}
    members: dict[str, np.ndarray] = {}
    for name in names():
        found = measured(name)
        lines |= {key: line(run) for key, run in found.items()}
        members |= {member(name, kind): given for kind, given in packed(found).items()}
    write_json(COUNTS, lines, numpy=numpy_version())
    write_values(VALUES, members)


def write_cuda(measured: Callable[[str], dict[str, Counts]]) -> None:
    """Measure every op on a host device and record what it launches."""
    lines: dict[str, Counts] = {}
    for name in names():
        lines |= measured(name)
    write_json(LAUNCHES, lines)
