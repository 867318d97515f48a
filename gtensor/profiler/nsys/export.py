"""Exports of Nsight Systems (`nsys export --type sqlite`): their tables as columns, within bounds.

The file is a user's. It is opened read-only, only ordinary tables are read, and SQLite stops when a
query takes more steps than a file of that size can need. Tables are written by nsys only if there
is something for them, and their columns vary between versions: an absent table has no rows, and an
absent column its default.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from gtensor.profiler.spans import ProfileError
from gtensor.system.files import MOST_EXPORT_BYTES, opened, printable, size_within

Columns = np.ndarray[Any, np.dtype[Any]]  # a structured array, all fields int64

KERNEL, GRAPH, COPY, FILL = range(4)  # kinds of GPU work
PUSH_POP, START_END, CATEGORY, DOMAIN = 59, 60, 33, 75  # kinds of rows in NVTX_EVENTS
ABSENT = -1  # the text, thread or range that is not there
OPEN = 1 << 60  # the end of a range that has none; no time is later
MOST_GPUS = 1 << 10

_HEADER = 100  # bytes
_MAGIC = b"SQLite format 3\0"
_MOST_TEXT = 1 << 10  # characters of a name
_STEP = 100_000  # of SQLite's virtual machine, between two looks at their number
_STEPS_PER_BYTE = 4  # a row has over 30 bytes, and to read it takes some 30 steps
_KNOWN = {"NVTX_EVENTS", "ANALYSIS_DETAILS", "TARGET_INFO_SYSTEM_ENV", "PROCESSES",
          "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"}
_COPIES = {1: "host to device", 2: "device to host", 8: "device to device", 9: "host to host",
           10: "device to another device", 11: "managed, host to device",
           12: "managed, device to host", 13: "managed, device to device"}


class Export(NamedTuple):
    """What an export holds. Times in nanoseconds; a text is an index of `texts`, or ABSENT.

    Attributes:
        version: of nsys, "" if the file does not say it.
        gpus: names by device.
        marks: rows of NVTX_EVENTS: kind, start, end, thread, domain, category, text.
        calls: of CUDA's API: start, end, thread, correlation, text.
        work: on GPUs: kind, start, end, device, stream, process, correlation, text, bytes.
        texts: printable characters only.
    """

    version: str
    gpus: dict[int, str]
    marks: Columns
    calls: Columns
    work: Columns
    texts: list[str]


def process(thread: Any) -> Any:
    """The process (nsys's `globalPid`) of a thread (`globalTid`)."""
    return thread & ~0xFFFFFF


def read(path: str | PathLike[str]) -> Export:
    """The export at `path`.

    Raises ProfileError if it is none, truncated or damaged, OSError if it cannot be read.
    """
    size = _whole(path)
    with _connected(path, size) as connection:
        return _Reader(path, connection).export()


def _whole(path: str | PathLike[str]) -> int:
    """The bytes of a file that has all pages that its header states."""
    with opened(path) as descriptor:
        try:
            size = size_within(descriptor, MOST_EXPORT_BYTES)
        except ValueError as error:
            raise ProfileError(f"{path} cannot be read: {error}; record fewer steps") from None
        head = os.pread(descriptor, _HEADER, 0)
    if not head.startswith(_MAGIC):
        raise ProfileError(f"{path} is no SQLite file; wanted an export of Nsight Systems: "
                           "nsys export --type sqlite REPORT.nsys-rep")
    page = int.from_bytes(head[16:18], "big")
    wanted = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if len(head) < _HEADER or size < wanted:
        raise ProfileError(f"{path} is truncated: it has {size:,} bytes of {wanted:,}; "
                           "export the report again")
    return size


@contextmanager
def _connected(path: str | PathLike[str], size: int) -> Iterator[sqlite3.Connection]:
    """The file, read-only; errors of SQLite within the block are ProfileErrors."""
    steps = 0

    def exhausted() -> bool:
        nonlocal steps
        steps += _STEP
        return steps > _STEPS_PER_BYTE * size + 10 * _STEP

    name = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(name, uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = lambda text: text.decode(errors="replace")
            connection.set_progress_handler(exhausted, _STEP)
            yield connection
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter, in words of SQLite
        raise ProfileError(f"{path} is damaged, or no export of Nsight Systems "
                           f"({printable(str(error))}); export the report again") from None


class _Reader:
    """Reads tables; the texts that their rows name are looked up at the end."""

    def __init__(self, path: str | PathLike[str], connection: sqlite3.Connection) -> None:
        self._path = path
        self._execute = connection.execute
        self._tables = {name for name, in self._execute(  # a view has no page, nor a virtual table
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")}
        if "StringIds" not in self._tables or self._tables.isdisjoint(_KNOWN):
            raise ProfileError(f"{path} is an SQLite file, but no export of Nsight Systems: it "
                               "lacks the table StringIds, or all that nsys fills; wanted one of "
                               "nsys export --type sqlite REPORT.nsys-rep")
        if not {"id", "value"} <= self._columns("StringIds"):
            raise ProfileError(f"{path} is an export of another format: the table StringIds lacks "
                               "the column id or value; wanted one of nsys 2020 or newer")
        self._inline: dict[str, int] = {}  # texts that rows hold themselves

    def export(self) -> Export:
        """All that is read."""
        marks = self._rows("NVTX_EVENTS", {
            "eventType": None, "start": None, "end": OPEN, "globalTid": None, "domainId": 0,
            "category": 0}, "text", "textId")
        calls = self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", {
            "start": None, "end": None, "globalTid": None, "correlationId": None}, "", "nameId")
        work = np.concatenate([
            self._work(KERNEL, "KERNEL", {}, "shortName", "demangledName"),
            self._work(GRAPH, "GRAPH_TRACE", {}),
            self._work(COPY, "MEMCPY", {"bytes": 0, "copyKind": 0}),
            self._work(FILL, "MEMSET", {"bytes": 0})])
        if len(np.unique(work["device"])) > MOST_GPUS:
            raise ProfileError(f"{self._path} is damaged: it has work of more than {MOST_GPUS:,} "
                               "GPUs; export the report again")
        marks, calls = _renamed(marks, _MARKS), _renamed(calls, _CALLS)
        texts = self._texts(marks, calls, work)
        return Export(self._version(), self._gpus(), _timed(marks), _timed(calls), _timed(work),
                      texts)

    def _work(self, kind: int, table: str, more: Mapping[str, int], *names: str) -> Columns:
        """The rows of a kind of work on GPUs."""
        found = self._rows(f"CUPTI_ACTIVITY_KIND_{table}", {
            "start": None, "end": None, "deviceId": 0, "streamId": 0, "globalPid": ABSENT,
            "correlationId": ABSENT, **more}, "", *names)
        made = np.zeros(len(found), [(name, np.int64) for name in _WORK])
        for name, its in zip(_WORK[1:], ("start", "end", "deviceId", "streamId", "globalPid",
                                         "correlationId", "code", "bytes"), strict=True):
            if its in (found.dtype.names or ()):
                made[name] = found[its]
        made["kind"] = kind
        if kind == COPY:
            kinds, inverse = np.unique(found["copyKind"], return_inverse=True)
            named = [self._code(_COPIES.get(int(one), "copy of another kind")) for one in kinds]
            made["text"] = np.array(named, np.int64)[inverse]
        elif kind != KERNEL:
            made["text"] = self._code("a graph" if kind == GRAPH else "memset")
        return made

    def _columns(self, table: str) -> set[str]:
        """Of a table, without those that are computed: one step of SQLite could take long."""
        return {name for _, name, *_ in self._execute(f'PRAGMA table_info("{table}")')}

    def _rows(self, table: str, wanted: Mapping[str, int | None], own: str,
              *identified: str) -> Columns:
        """The columns of a table and the code of its text, without rows if there is no table.

        Args:
            wanted: columns, and what stands for them where they are absent or NULL; None if a file
                without the column is none that can be read.
            own: the column that holds a text, "" if none does.
            identified: columns with numbers of texts, of which the first that is there counts.
        """
        kind = np.dtype([(name, np.int64) for name in (*wanted, "code")])
        if table not in self._tables:
            return np.zeros(0, kind)
        there = self._columns(table)
        for name, default in wanted.items():
            if default is None and name not in there:
                raise ProfileError(f"{self._path} is an export of another format: the table "
                                   f"{table} lacks the column {name}; wanted one of nsys 2020 or "
                                   "newer")
        chosen = [f'ifnull(CAST("{name}" AS INTEGER), {default or 0})' if name in there
                  else str(default) for name, default in wanted.items()]
        text = next((f'"{name}"' for name in identified if name in there), "NULL")
        chosen.append(f"ifnull(max(CAST({text} AS INTEGER), {ABSENT}), {ABSENT})")
        if own in there:
            chosen.append(f'substr(CAST("{own}" AS TEXT), 1, {_MOST_TEXT})')
        found: Any = self._execute(f'SELECT {", ".join(chosen)} FROM "{table}"')
        if own in there:
            found = map(self._coded, found)
        numbers = np.fromiter(chain.from_iterable(found), np.int64)  # a third of the time of rows
        return numbers.view(kind)

    def _coded(self, row: tuple[Any, ...]) -> tuple[int, ...]:
        """A row, with the code of its own text in place of the number of one, if it has one."""
        *numbers, text = row
        if text is not None:
            numbers[-1] = self._code(text)
        return tuple(numbers)

    def _code(self, text: str) -> int:
        """The code of a text that is not in StringIds: below ABSENT."""
        return ABSENT - 1 - self._inline.setdefault(text, len(self._inline))

    def _texts(self, *tables: Columns) -> list[str]:
        """The texts of all rows; their codes become indices of the list."""
        codes, inverse = np.unique(np.concatenate([rows["text"] for rows in tables]),
                                   return_inverse=True)
        inline = [*self._inline]
        wanted = {int(code): at for at, code in enumerate(codes)}
        found = [""] * len(codes)
        for code, at in wanted.items():
            if code < ABSENT:
                found[at] = printable(inline[ABSENT - 1 - code])
            elif code > ABSENT:
                found[at] = "(a text that is not in the file)"
        for number, value in self._execute(
                f"SELECT id, substr(CAST(value AS TEXT), 1, {_MOST_TEXT}) FROM StringIds"):
            place = wanted.get(number)
            if place is not None and number > ABSENT and isinstance(value, str):
                found[place] = printable(value)
        indices = np.where(codes == ABSENT, ABSENT, np.arange(len(codes)))[inverse]
        at = 0
        for rows in tables:
            rows["text"] = indices[at:at + len(rows)]
            at += len(rows)
        return found

    def _version(self) -> str:
        if not {"name", "value"} <= self._columns("META_DATA_EXPORT"):
            return ""
        found = self._execute("SELECT value FROM META_DATA_EXPORT WHERE name = "
                              "'EXPORT_PRODUCT_VERSION' LIMIT 1").fetchone()
        return printable(str(found[0])[:_MOST_TEXT]) if found else ""

    def _gpus(self) -> dict[int, str]:
        there = self._columns("TARGET_INFO_GPU")
        number = "cuDevice" if "cuDevice" in there else "id"
        if not {number, "name"} <= there:
            return {}
        rows = self._execute(f'SELECT CAST("{number}" AS INTEGER), name FROM TARGET_INFO_GPU')
        return {device: printable(str(name)[:_MOST_TEXT]) for device, name in rows
                if device is not None and name}


_MARKS = ("kind", "start", "end", "thread", "domain", "category", "text")
_CALLS = ("start", "end", "thread", "correlation", "text")
_WORK = ("kind", "start", "end", "device", "stream", "process", "correlation", "text", "bytes")


def _renamed(rows: Columns, names: Sequence[str]) -> Columns:
    """The same rows under other names."""
    return rows.view([(name, np.int64) for name in names])


def _timed(rows: Columns) -> Columns:
    """The rows, with times that can be computed with: an end is not before its start."""
    rows["start"] = np.clip(rows["start"], -OPEN, OPEN)
    rows["end"] = np.clip(rows["end"], rows["start"], OPEN)
    return rows
