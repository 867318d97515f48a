"""Matches the tensors of a file to those of a model, and reports what did not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gtensor.checkpoint.layout import Entry
from gtensor.checkpoint.state import memory_of
from gtensor.engine.handle.tensor import Tensor, is_floating
from gtensor.system.files import printable

Rename = Callable[[str], str | None] | Mapping[str, str | None] | None
MOST_ROWS = 12  # of one kind in the printed report


@dataclass
class Report:
    """The result of a load by name (the model's names, except in `unexpected`).

    Attributes:
        path: of the file.
        loaded: names whose values came from the file.
        missing: names of the model that the file lacks; they keep their values.
        unexpected: names of the file that the model lacks.
        mismatched: name, what the file has, what the model has: shapes or kinds that differ.
        converted: name, dtype in the file, dtype in the model.
        tied: names without a value of their own that share the memory of a loaded one.
        suggestion: a call that would match more names, if only a prefix differs; else "".
    """

    path: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[tuple[str, str, str]] = field(default_factory=list)
    converted: list[tuple[str, str, str]] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)
    suggestion: str = ""

    @property
    def complete(self) -> bool:
        """Whether every name of the file and of the model was matched."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing) + len(self.mismatched) + len(self.tied)
        lines = [f"{self.path}: {len(self.loaded)} of {total} tensors loaded"
                 + (f", {len(self.tied)} share their memory" if self.tied else "")]
        lines += _section("missing in the file, left as they were", [(n,) for n in self.missing])
        lines += _section("unexpected: not in the model", [(n,) for n in self.unexpected])
        lines += _section("do not fit, left as they were",
                          [(n, f"file {a}", f"model {b}") for n, a, b in self.mismatched])
        counts = Counter((a, b) for _, a, b in self.converted)
        lines += _section("converted", [(f"{a} -> {b}", f"{n} tensors")
                                        for (a, b), n in counts.items()])
        if self.suggestion:
            lines.append(f"  {self.suggestion}")
        return "\n".join(lines)


def fit(
    places: Mapping[str, Tensor], entries: Mapping[str, Entry], rename: Rename, path: object
) -> tuple[dict[str, str], Report]:
    """The file's name for every tensor of the model that it has, and the report.

    Raises ValueError if two names of the file are renamed to one, or `rename` has a name or prefix
    that the file lacks.
    """
    idle = [] if rename is None or callable(rename) else [
        key for key in rename if key not in entries
        and not (key.endswith(".") and any(name.startswith(key) for name in entries))]
    if idle:
        raise ValueError(f"rename has {', '.join(map(repr, idle))}, which {path} has not; wanted "
                         "names of the file's tensors, or prefixes of them that end with a dot")
    source: dict[str, str] = {}
    report = Report(str(path))
    for name in entries:
        new = _renamed(rename, name)
        if new is None:
            continue
        if new in source:
            raise ValueError(f"rename makes {new!r} of {source[new]!r} and of {name!r}; wanted "
                             "different names")
        source[new] = name
    plan: dict[str, str] = {}
    for name, place in places.items():
        if name not in source:
            report.missing.append(name)
            continue
        entry = entries[source[name]]
        given, wanted = str(entry.shape), str(place.shape)
        if entry.shape == place.shape and not _castable(entry.dtype, place.dtype):
            given, wanted = entry.dtype.name, place.dtype.name
        if given != wanted:
            report.mismatched.append((name, given, wanted))
            continue
        plan[name] = source[name]
        report.loaded.append(name)
        if entry.dtype != place.dtype:
            report.converted.append((name, entry.dtype.name, place.dtype.name))
    report.unexpected = [old for new, old in source.items() if new not in places]
    _find_tied(places, report)
    if report.missing and report.unexpected:
        report.suggestion = _suggestion(places, source, len(plan))
    return plan, report


def _renamed(rename: Rename, name: str) -> str | None:
    """The model's name for one of the file, None to leave it out."""
    if rename is None:
        return name
    if callable(rename):
        return rename(name)
    if name in rename:
        return rename[name]
    longest = max((old for old in rename if old.endswith(".") and name.startswith(old)),
                  key=len, default="")
    new = rename[longest] if longest else ""
    return None if new is None else new + name.removeprefix(longest)


def _castable(given: np.dtype, wanted: np.dtype) -> bool:
    """Whether both dtypes are of one kind: a float cast to an integer would lose digits."""
    return _kind(given) == _kind(wanted) or given.kind == "b" and wanted.kind in "iu"


def _kind(dtype: np.dtype) -> str:
    return "float" if is_floating(dtype) else "integer" if dtype.kind in "iu" else dtype.kind


def _find_tied(places: Mapping[str, Tensor], report: Report) -> None:
    """Names that are missing only because the file stores a shared tensor once."""
    loaded = {memory_of(places[name]): name for name in report.loaded}
    loaded.pop(None, None)
    for name in list(report.missing):
        other = loaded.get(memory_of(places[name]))
        if other is not None:
            report.tied[name] = other
            report.missing.remove(name)


def _suggestion(places: Mapping[str, Tensor], source: Mapping[str, str], fitting: int) -> str:
    """How to remove or add the prefix that makes most names fit, if that is more than now."""
    best = ""
    for whole, others, told in (
            (source, places, "of the file start with {0!r}: pass rename={{{0!r}: ''}}"),
            (places, source, "of the model start with {0!r}, which the file leaves out: pass "
                             "rename=lambda name: {0!r} + name")):
        prefixes = Counter(name[:at] for name in whole for at in range(1, len(name))
                           if name[at - 1] == "." and name[at:] in others)
        for prefix, count in prefixes.most_common(1):
            if count > fitting:
                best, fitting = f"{count} of {len(whole)} names {told.format(prefix)}", count
    return best


def _section(title: str, rows: list[tuple[str, ...]]) -> list[str]:
    """A titled part of the table, its columns aligned."""
    if not rows:
        return []
    shown = [tuple(map(printable, row)) for row in rows[:MOST_ROWS]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]))]
    lines = [f"  {title} ({len(rows)})"]
    lines += ["    " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
              for row in shown]
    if len(rows) > len(shown):
        lines.append(f"    ... and {len(rows) - len(shown)} more")
    return lines
