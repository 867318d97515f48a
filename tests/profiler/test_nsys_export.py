"""Exports of Nsight Systems: read in the forms of several versions, joined, and refused."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gtensor.cli.nsys import show
from gtensor.profiler import ProfileError
from gtensor.profiler.nsys import joins as nsys_joins
from gtensor.profiler.nsys import work as nsys_work
from gtensor.profiler.nsys.export import ABSENT, read
from gtensor.profiler.nsys.labels import Label, parsed
from gtensor.profiler.nsys.tables import NO_KERNELS, NO_RANGES, tables
from gtensor.profiler.nsys.work import NO_LAUNCH, NO_MODULE, OUTSIDE, Session
from gtensor.train import UserError
from tests.profiler.nsys_files import PROCESS, THREAD, Call, Mark, Task, a_step, write


def session(path: Path) -> Session:
    return Session(read(path))


def sums(work: list[nsys_work.Work]) -> dict[str, tuple[int, int]]:
    """By name, how many and how many nanoseconds."""
    return {one.name: (one.number, round(one.seconds * 1e9)) for one in work}


@pytest.mark.parametrize("form", ["new", "inline", "old"])
def test_a_step_by_hand(form: str, tmp_path: Path) -> None:
    found = session(a_step(tmp_path / "step.sqlite", form))
    known = form != "old"  # the categories of ranges
    assert found.seconds == pytest.approx(1000e-9)
    # 100-250 of two streams that overlap, 305-315, 340-350, 500-600, 650-700, 740-800, 900-910
    gpu, = found.devices()
    assert (gpu.device, gpu.name) == (0, "a GPU" if known else "")
    assert [round(gpu.busy * 1e9), round(gpu.idle * 1e9)] == [390, 610]
    assert (gpu.kernels, gpu.copies) == (6, 2)
    assert sums(found.kernels("op")) == {
        "linear forward": (1, 100), "linear backward": (1, 100), "relu forward": (1, 60),
        "sgd update" if known else "sgd forward": (1, 50),
        "add backward" if known else "add forward": (1, 10), NO_LAUNCH: (1, 10)}
    assert sums(found.kernels("module")) == {
        "Net.first": (2, 200), NO_MODULE: (3, 120), NO_LAUNCH: (1, 10)}
    first = found.kernels("kernel")[0]
    assert (first.name, first.op, first.number, round(first.longest * 1e9)) == (
        "gemm" if known else "void gemm<float>(float*)", "linear backward", 2, 100)
    assert [(one.name, one.op, one.nbytes) for one in found.copies()] == [
        ("host to device", "batch", 4096), ("memset", OUTSIDE, 64)]
    assert sums(found.calls())["cudaLaunchKernel"] == (5, 46)
    assert found.calls()[0][:2] == ("cudaStreamSynchronize", "batch")


def test_gaps_name_what_the_host_did_and_what_came_next(tmp_path: Path) -> None:
    gaps = session(a_step(tmp_path / "step.sqlite")).gaps(4)
    assert [(round(gap.start * 1e9), round(gap.seconds * 1e9), gap.next, gap.host, gap.call,
             round(gap.call_seconds * 1e9)) for gap in gaps] == [
        (350, 150, "linear backward", "linear backward", "cudaMalloc", 60),
        (0, 100, "linear forward", "linear forward", "cudaLaunchKernel", 10),
        (800, 100, NO_LAUNCH, "batch", "cudaStreamSynchronize", 90),
        (910, 90, "", OUTSIDE, "", 0)]


def test_host_times_are_without_ops_within(tmp_path: Path) -> None:
    found = sums(session(a_step(tmp_path / "step.sqlite")).host())
    assert found["linear forward"] == (1, 90)  # with the empty range of memory in it
    assert found["linear backward"] == (1, 170) and found["add backward"] == (1, 10)
    assert found["Net"] == (1, 290 - 130 - 40) and "segment acquired" not in found


def test_tables_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(a_step(tmp_path / "step.sqlite"), 2) == 0
    said = capsys.readouterr().out
    assert ("1 us recorded (nsys 2025.1.2.3), the captured steps; updates of an optimizer: 1\n"
            in said)
    assert ("GPU 0 (a GPU): busy 0.39 us, idle 0.61 us (61.0 %); 6 kernels, 2 copies and memsets"
            in said)
    by_op = said[said.index("Kernels by op"):said.index("Kernels by module")].split("\n")
    assert [line.split()[:6] for line in by_op[4:7]] == [
        ["linear", "backward", "1", "0.1", "us", "30.3"],
        ["linear", "forward", "1", "0.1", "us", "30.3"], ["4", "more"]]
    for title in ("Kernels, and the op", "Ops and other ranges", "did nothing", "Copies and",
                  "Calls of CUDA's API"):
        assert title in said


@pytest.mark.parametrize("text,category,label", [
    ("Net.first linear forward", "forward", Label("linear forward", "Net.first", True)),
    ("sum backward", "backward", Label("sum backward", "", True)),
    ("Net gemm forward (2, 3) ()", "backward", Label("gemm backward", "Net", True)),
    ("adam forward", "optimizer", Label("adam update", "", True)),
    ("Net.first", "backward", Label("Net.first", "Net.first", False)),
    ("backward", "backward", Label("backward", "", False)),
    ("Adam update", "optimizer", Label("Adam update", "", False)),
    ("my step forward", "user", Label("my step forward", "", False)),
    ("x linear forward", "", Label("linear forward", "x", True)),
])
def test_labels(text: str, category: str, label: Label) -> None:
    assert parsed(text, category) == label


def test_several_gpus_are_busy_each_by_itself(tmp_path: Path) -> None:
    found = session(write(tmp_path / "two.sqlite", work=[
        Task("a", 0, 10, 1), Task("a", 5, 20, 2, device=1), Task("a", 90, 100, 3)],
        gpus=[(0, "first"), (1, "second")]))
    assert [(gpu.name, round(gpu.busy * 1e9)) for gpu in found.devices()] == [
        ("first", 20), ("second", 15)]
    assert [(gap.device, round(gap.seconds * 1e9)) for gap in found.gaps(9)] == [
        (0, 80), (1, 80), (1, 5)]


def test_a_graph_recorded_as_one_is_busy_time_of_its_replay(tmp_path: Path) -> None:
    found = session(write(
        tmp_path / "graph.sqlite", [Mark("graph replay", "graph", 0, 9)],
        [Call("cudaGraphLaunch", 1, 2, 5)], [Task("", 10, 40, 5, table="GRAPH_TRACE")]))
    assert [one[:3] for one in found.kernels("kernel")] == [("a graph", "graph replay", 1)]
    assert round(found.devices()[0].busy * 1e9) == 30


def test_what_is_absent_is_said(tmp_path: Path) -> None:
    nothing = tables(session(write(tmp_path / "a.sqlite")), 9, 100)
    assert nothing == f"{NO_RANGES}\n\n{NO_KERNELS}"
    foreign = tables(session(write(tmp_path / "b.sqlite", [Mark("x", "user", 0, 9)],
                                   domain="another")), 9, 100)
    assert NO_RANGES in foreign
    ranges = session(write(tmp_path / "c.sqlite", [Mark("sum forward", "forward", 0, None),
                                                   Mark("x", "user", 2, 8)]))
    assert NO_RANGES not in (said := tables(ranges, 9, 100)) and NO_KERNELS in said
    assert round(ranges.seconds * 1e9) == 8  # a range without an end does not count
    ended = session(write(tmp_path / "e.sqlite", [Mark("steps", "user", 1, None, kind=60),
                                                  Mark("sum forward", "forward", 2, 8)]))
    assert round(ended.seconds * 1e9) == 7  # the program ended within the steps
    kernels = tables(session(write(tmp_path / "d.sqlite", work=[Task("a", 0, 9, 1)])), 9, 100)
    assert NO_RANGES in kernels and "Kernels, and the op" in kernels


def test_names_are_printable_and_bounded(tmp_path: Path) -> None:
    long = "\x1b[31mred \u202e" + "x" * 10**5
    path = write(tmp_path / "names.sqlite", [Mark(long, "user", 0, 9), Mark("b", "user", 1, 2)],
                 gpus=[(0, "\x1b[2J")])
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE StringIds SET value = CAST(x'ff41' AS TEXT) WHERE value = 'b'")
        file.commit()
    found = read(path)
    name = next(text for text in found.texts if "red" in text)
    assert name.startswith("?[31mred ?xx") and len(name) == 1024 and found.gpus == {0: "?[2J"}
    assert "\ufffdA" in found.texts  # no UTF-8


# -- a slow reference ------------------------------------------------------------------------------


def nested(draw: random.Random, thread: int, end: int) -> list[Mark]:
    """Ranges that nest, in the order of their begins; many begin and end at the same times."""
    found: list[Mark] = []

    def inside(start: int, end: int, depth: int) -> None:
        at = start
        while depth and at <= end and draw.random() < 0.8:
            first = draw.randint(at, end)
            last = draw.randint(first, end)
            text, category = draw.choice([
                ("Net.a linear forward", "forward"), ("sum backward", "backward"),
                ("Net.b", "forward"), ("segment acquired", "memory"), ("sgd forward", "optimizer"),
                ("mine", "user")])
            found.append(Mark(text, category, first, last, thread))
            inside(first, last, depth - 1)
            at = last + draw.randint(0, 2)

    inside(0, end, 4)
    return found


def random_export(seed: int) -> tuple[list[Mark], list[Call], list[Task]]:
    draw = random.Random(seed)
    end = draw.choice((6, 30, 300))
    processes = [PROCESS, PROCESS + (5 << 24)][:draw.randint(1, 2)]
    threads = [process + k for process in processes for k in range(1, draw.randint(2, 4))]
    marks = [mark for thread in threads for mark in nested(draw, thread, end)]
    calls, work = [], []
    for process in processes:
        for correlation in range(draw.randint(0, 40)):
            at = draw.randint(0, end)
            calls.append(Call(draw.choice(("cudaLaunchKernel", "cudaMalloc")), at,
                              at + draw.randint(0, 3), correlation, draw.choice(
                                  [one for one in threads if one & ~0xFFFFFF == process])))
        for _ in range(draw.randint(0, 40)):
            at = draw.randint(0, end)
            work.append(Task(draw.choice("abc"), at, at + draw.randint(0, 9),
                             draw.randint(0, 50), draw.randint(0, 1), draw.randint(1, 3), process,
                             draw.choice(("KERNEL", "KERNEL", "MEMCPY"))))
    draw.shuffle(calls)
    draw.shuffle(work)
    return marks, calls, work


def behind(marks: list[Mark], thread: int, time: int) -> str:
    """The name of the innermost op around a time, else of the innermost range."""
    around = sorted((mark.start, -mark.end, at) for at, mark in enumerate(marks)
                    if mark.thread == thread and (mark.start <= time < mark.end
                                                  or mark.start == time == mark.end))
    labels = [parsed(marks[at].text, marks[at].category) for *_, at in around]
    return next((one.name for one in reversed(labels) if one.is_op),
                labels[-1].name if labels else OUTSIDE)


def check(seed: int, path: Path) -> None:
    """Raise AssertionError unless a random export says what the reference says."""
    marks, calls, work = random_export(seed)
    if not (marks and work):
        return
    found = session(write(path, marks, calls, work))
    ops: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for task in work:
        if task.table == "KERNEL":
            call = next((one for one in calls if one.thread & ~0xFFFFFF == task.process
                         and one.correlation == task.correlation), None)
            name = behind(marks, call.thread, call.start) if call else NO_LAUNCH
            ops[name] += 1
            seconds[name] += task.end - task.start
    assert sums(found.kernels("op")) == {name: (ops[name], seconds[name]) for name in ops}
    events = [*marks, *calls, *work]
    first, last = min(one.start for one in events), max(one.end for one in events)
    for gpu in found.devices():
        own = [one for one in work if one.device == gpu.device]
        busy = [any(one.start <= time < one.end for one in own) for time in range(first, last)]
        assert round(gpu.busy * 1e9) == sum(busy)
        runs = "".join("x" if one else " " for one in busy).split("x")
        assert sorted(round(gap.seconds * 1e9) for gap in found.gaps(10**6)
                      if gap.device == gpu.device) == sorted(len(run) for run in runs if run)
    host = Counter({name: nanoseconds for name, (_, nanoseconds) in sums(found.host()).items()})
    slow = Counter(name for thread in {mark.thread for mark in marks} for time in range(first, last)
                   if (name := behind([mark for mark in marks if mark.start < mark.end], thread,
                                      time)) != OUTSIDE)
    assert +host == +slow


@pytest.mark.parametrize("seed", range(25))
def test_random_exports_agree_with_a_slow_join(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path / "random.sqlite")


def outermost(self: nsys_joins.Nested, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
    return self.parents()[right_at(self, threads, times)]


def one_process(thread: np.ndarray) -> np.ndarray:
    return thread * 0


def sum_of_streams(self: Session, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(work["start"]), np.sort(work["end"])


right_at = nsys_joins.Nested.at
FAULTS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "the range around": (nsys_joins.Nested, "at", outermost),
    "calls of any process": (nsys_joins, "process", one_process),
    "streams not united": (Session, "_busy", sum_of_streams),
    "no op further up": (nsys_joins.Nested, "parents",
                         lambda self: np.full(len(self._range) // 2, ABSENT)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_finds_a_planted_fault(fault: str, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError):
        for seed in range(25):
            check(seed, tmp_path / "random.sqlite")


# -- files that are none ---------------------------------------------------------------------------


def refused(path: Path) -> str:
    """The one sentence with which a file is refused."""
    with pytest.raises(ProfileError) as error:
        read(path)
    sentence = str(error.value)
    assert "\n" not in sentence and str(path) in sentence and sentence.isprintable()
    return sentence


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    path, draw = a_step(tmp_path / "step.sqlite"), random.Random(0)
    data = path.read_bytes()
    for length in [0, 1, 15, 16, 99, 100, 101, 4096, len(data) - 1,
                   *(draw.randrange(len(data)) for _ in range(60))]:
        path.write_bytes(data[:length])
        assert "no SQLite file" if length < 16 else "truncated" in refused(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    path.write_text("a text file, which is longer than the header of an SQLite file. " * 9)
    assert "is no SQLite file; wanted an export of Nsight Systems: nsys export" in refused(path)
    path.unlink()
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE people (name TEXT)")
    assert "is an SQLite file, but no export of Nsight Systems" in refused(path)
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        file.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, eventType INTEGER)")
    assert "the table NVTX_EVENTS lacks the column globalTid" in refused(path)
    with pytest.raises(UserError, match="there is no file"):
        show(tmp_path / "missing.sqlite", 9)
    with pytest.raises(UserError, match="is a folder; wanted a regular file"):
        show(tmp_path, 9)


def test_a_view_in_the_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    path = a_step(tmp_path / "step.sqlite")
    with closing(sqlite3.connect(path)) as file:
        file.execute("DROP TABLE NVTX_EVENTS")
        file.execute("CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL "
                     "SELECT n + 1 FROM r) SELECT n AS start, n AS end, 59 AS eventType, 1 AS "
                     "globalTid FROM r")
    assert not session(path).has_ranges


def test_a_column_that_computes_large_texts_is_not_read(tmp_path: Path) -> None:
    """One step of SQLite's machine may compute 40 MB, so a count of steps does not bound it."""
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER)")
        made.executemany("INSERT INTO StringIds VALUES (?)", [(i,) for i in range(2000)])
        made.execute("ALTER TABLE StringIds ADD COLUMN value TEXT GENERATED ALWAYS AS (substr("
                     "replace(printf('%.*c', 20000000 + id, 'x'), 'x', 'yy'), 1, 9))")
        made.execute("CREATE TABLE NVTX_EVENTS (eventType, start, end, globalTid, textId)")
        made.execute("INSERT INTO NVTX_EVENTS VALUES (59, 1, 2, 3, 7)")
    made.close()
    with pytest.raises(ProfileError, match="StringIds lacks the column id or value; wanted"):
        read(path)


def test_pages_that_repeat_without_end_are_refused(tmp_path: Path) -> None:
    path = a_step(tmp_path / "step.sqlite")
    with closing(sqlite3.connect(path)) as file:
        size = file.execute("PRAGMA page_size").fetchone()[0]
        root = file.execute("SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_EVENTS'"
                            ).fetchone()[0]
    data = bytearray(path.read_bytes())
    leaf = data[size * (root - 1):size * root]
    above = 8  # pages, of which each names the next one 300 times: 300 ** 8 rows
    first = len(data) // size + 1
    for depth in range(above):
        child = first + depth
        cells = b"".join(struct.pack(">IB", child, 1) for _ in range(300))
        at = size - len(cells)
        page = struct.pack(">BHHHBI", 5, 0, 300, at, 0, child)
        page += b"".join(struct.pack(">H", at + 5 * k) for k in range(300))
        page += bytes(at - len(page)) + cells
        if depth:
            data += page
        else:
            data[size * (root - 1):size * root] = page
    data += leaf
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)
    assert "interrupted" in refused(path)


def test_extreme_numbers_are_no_error(tmp_path: Path) -> None:
    most = 2**63 - 1
    found = session(write(
        tmp_path / "extreme.sqlite", [Mark("sum forward", "forward", -most, most, most),
                                      Mark("x", "user", 5, 1, -most)],
        [Call("a", -most, most, most, most), Call("a", 7, 3, -most, -most)],
        [Task("k", most, -most, most, process=most & ~0xFFFFFF), Task("k", 3, 4, 1, -most, most)]))
    assert "Kernels by op" in tables(found, 9, 100)
    write(tmp_path / "gpus.sqlite", work=[Task("k", 1, 2, 1, device=at) for at in range(1025)])
    assert "work of more than 1,024 GPUs" in refused(tmp_path / "gpus.sqlite")


def test_the_size_of_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gtensor.profiler.nsys.export.MOST_EXPORT_BYTES", 999)
    assert "bytes, wanted at most 999; record fewer steps" in refused(
        a_step(tmp_path / "step.sqlite"))


def test_an_export_is_not_written_to(tmp_path: Path) -> None:
    path = a_step(tmp_path / "a ?#% step.sqlite")  # a name that an address would cut short
    before = path.read_bytes()
    assert session(path).has_ranges
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


def test_threads_have_the_ranges_of_their_own(tmp_path: Path) -> None:
    marks = [Mark("Net relu forward", "forward", 0, 100), Mark("sum forward", "forward", 0, 100,
                                                               THREAD + 1)]
    calls = [Call("cudaLaunchKernel", 10, 11, 1), Call("cudaLaunchKernel", 10, 11, 2, THREAD + 1),
             Call("cudaLaunchKernel", 10, 11, 3, THREAD + 2)]
    work = [Task("k", 20, 20 + 10**at, at + 1) for at in range(3)]
    assert sums(session(write(tmp_path / "x.sqlite", marks, calls, work)).kernels("op")) == {
        "relu forward": (1, 1), "sum forward": (1, 10), OUTSIDE: (1, 100)}
