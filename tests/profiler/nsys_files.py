"""Small SQLite files of the schema of `nsys export`, in the forms of several versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

PROCESS = 0x1000_0A1B2C_000000  # as nsys writes it: a machine, a process, and 24 bits for a thread
THREAD = PROCESS + 0xA1B2C
CATEGORIES = ("user", "forward", "backward", "optimizer", "memory", "data", "communication",
              "graph")


class Mark(NamedTuple):
    """A range of the domain `gtensor`; without an end it was not closed."""

    text: str
    category: str
    start: int
    end: int | None
    thread: int = THREAD
    kind: int = 59


class Call(NamedTuple):
    """A call of CUDA's API."""

    text: str
    start: int
    end: int
    correlation: int
    thread: int = THREAD


class Task(NamedTuple):
    """Work on a GPU; `table` is KERNEL, MEMCPY, MEMSET or GRAPH_TRACE."""

    text: str
    start: int
    end: int
    correlation: int
    device: int = 0
    stream: int = 7
    process: int = PROCESS
    table: str = "KERNEL"
    nbytes: int = 0
    copy_kind: int = 1


def write(path: Path, marks: Sequence[Mark] = (), calls: Sequence[Call] = (),
          work: Sequence[Task] = (), *, form: str = "new", domain: str = "gtensor",
          gpus: Sequence[tuple[int, str]] = ((0, "a GPU"),)) -> Path:
    """An export of these events.

    Args:
        form: "new", as nsys 2023.4 writes it; "inline", with texts in NVTX_EVENTS instead of their
            numbers; "old", without names of categories, processes of work, versions, short names.
    """
    path.unlink(missing_ok=True)
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts) + 1)

    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, "
                     "value TEXT NOT NULL)")
        file.execute("CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER)")
        if marks:
            identified = "" if form == "inline" else ", textId INTEGER"
            file.execute("CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType "
                         "INTEGER NOT NULL, category INTEGER, color INTEGER, text TEXT, globalTid "
                         f"INTEGER, domainId INTEGER{identified})")
            rows: list[tuple[Any, ...]] = []
            for process in {mark.thread & ~0xFFFFFF for mark in marks}:
                rows += [(-9, None, 75, None, None, "other", process + 1, 1, None),
                         (-8, None, 75, None, None, domain, process + 1, 2, None)]
                if form != "old":
                    rows += [(-7, None, 33, at, None, name, process + 1, 2, None)
                             for at, name in enumerate(CATEGORIES, 1)]
                rows.append((-6, 10**6, 59, None, None, "not of gtensor", process + 1, 1, None))
            for mark in marks:
                own = (mark.text, None) if form == "inline" else (None, number(mark.text))
                rows.append((mark.start, mark.end, mark.kind, CATEGORIES.index(mark.category) + 1,
                             255, own[0], mark.thread, 2, own[1]))
            if form == "inline":
                rows = [row[:-1] for row in rows]
            file.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({','.join('?' * len(rows[0]))})",
                             rows)
        if calls:
            file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end "
                         "INTEGER NOT NULL, eventClass INTEGER, globalTid INTEGER, correlationId "
                         "INTEGER, nameId INTEGER NOT NULL)")
            file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?)", [
                (one.start, one.end, one.thread, one.correlation, number(one.text))
                for one in calls])
        for table in sorted({one.table for one in work}):
            named = {"KERNEL": "demangledName INTEGER, shortName INTEGER", "MEMSET":
                     "bytes INTEGER", "MEMCPY": "bytes INTEGER, copyKind INTEGER",
                     "GRAPH_TRACE": "graphId INTEGER"}[table]
            whose = "" if form == "old" else "globalPid INTEGER, "
            named = named.replace(", shortName INTEGER", "") if form == "old" else named
            file.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} (start INTEGER NOT NULL, end "
                         "INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
                         f"correlationId INTEGER, {whose}{named})")
            for one in work:
                if one.table != table:
                    continue
                row = [one.start, one.end, one.device, 1, one.stream, one.correlation]
                row += [] if form == "old" else [one.process]
                row += {"KERNEL": [number(f"void {one.text}<float>(float*)")]
                        + [number(one.text)] * (form != "old"),
                        "MEMSET": [one.nbytes], "MEMCPY": [one.nbytes, one.copy_kind],
                        "GRAPH_TRACE": [1]}[table]
                file.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES "
                             f"({','.join('?' * len(row))})", row)
        if form != "old":
            file.execute("CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)")
            file.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', "
                         "'2025.1.2.3')")
            file.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, cuDevice INTEGER)")
            file.executemany("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?)",
                             [(device + 3, name, device) for device, name in gpus])
        file.executemany("INSERT INTO StringIds VALUES (?, ?)",
                         [(at, text) for text, at in texts.items()])
        file.commit()
    return path


def a_step(path: Path, form: str = "new") -> Path:
    """A step of 1,000 ns that the comments of `test_a_step_by_hand` compute."""
    return write(path, marks=[
        Mark("steps", "user", 0, 1000, kind=60),
        Mark("Net", "forward", 10, 300),
        Mark("Net.first", "forward", 20, 150), Mark("Net.first linear forward", "forward", 30, 120),
        Mark("segment acquired", "memory", 40, 40), Mark("relu forward", "forward", 160, 200),
        Mark("backward", "backward", 310, 600),
        Mark("Net.first linear backward (4, 6) (5, 6)", "backward", 320, 500),
        Mark("add forward", "backward", 330, 340),
        Mark("SGD update", "optimizer", 610, 700), Mark("sgd forward", "optimizer", 620, 690),
        Mark("batch", "data", 710, 900),
    ], calls=[
        Call("cudaLaunchKernel", 50, 60, 1), Call("cudaLaunchKernel", 170, 180, 2),
        Call("cudaLaunchKernel", 332, 338, 3), Call("cudaLaunchKernel", 400, 410, 4),
        Call("cudaMalloc", 420, 480, 9), Call("cudaLaunchKernel", 630, 640, 5),
        Call("cudaMemcpyAsync", 720, 730, 6), Call("cudaStreamSynchronize", 730, 890, 10),
        Call("cudaMemsetAsync", 302, 304, 7),
    ], work=[
        Task("gemm", 100, 200, 1), Task("relu", 190, 250, 2, stream=8), Task("add", 340, 350, 3),
        Task("gemm", 500, 600, 4), Task("sgd", 650, 700, 5),
        Task("", 740, 800, 6, table="MEMCPY", nbytes=4096),
        Task("", 305, 315, 7, table="MEMSET", nbytes=64), Task("lost", 900, 910, 99),
    ], form=form)
