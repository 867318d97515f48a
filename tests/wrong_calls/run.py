"""Starts the processes that make wrong calls, reads how each ended, and counts."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wrong_calls.classes import CLASSES, CRASH, HANG

TESTS = Path(__file__).resolve().parents[1]
LONGEST = 60.0  # seconds without a word, in which a call hangs
FIRST = 600.0  # and for what is made before it


class Outcome(NamedTuple):
    """How one wrong call ended."""

    room: str
    name: str
    parameter: str
    value: str
    kind: str  # one of `CLASSES`
    text: str
    place: str  # the line of gtensor's that raised

    def __str__(self) -> str:
        where = f"{self.room}.{self.name}".strip(".")
        return (f"{self.kind:9} {where}({self.parameter}={self.value!r}): {self.text}"
                f"  [{self.place}]")


def outcomes(
    rooms: list[str], seed: int | None = None, count: int = 0, each: int = 8,
    longest: float = LONGEST,
) -> Iterator[Outcome]:
    """Of all wrong calls of some rooms, or of `count` that a seed chooses, `each` of a parameter.

    Args:
        longest: see `LONGEST`.
    """
    done = 0
    while True:
        ended = yield from _of_one_process([rooms, seed, count, each, done], longest)
        if ended is None:
            return
        done += ended


def _of_one_process(asked: list[Any], longest: float) -> Generator[Outcome, None, int | None]:
    """The outcomes of a process; returns how many it made if a call ended it, else None."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "wrong_calls.worker", json.dumps(asked)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=folder,
            env=os.environ | {
                "TMPDIR": folder, "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])})
        assert worker.stdout is not None
        lines = _Lines(worker.stdout.fileno())
        made = 0
        begun: list[str] | None = None
        try:
            while line := lines.next(FIRST if begun is None else longest):
                read = json.loads(line)
                if len(read) == 4:
                    begun = read
                elif begun is not None:
                    yield Outcome(*begun, *read)
                    made, begun = made + 1, None
            if line is None:
                worker.kill()
            if worker.wait() == 0:
                return None
            if begun is None:
                errors.seek(0)
                raise RuntimeError("the process of wrong calls failed beside them: "
                                   + errors.read().decode(errors="replace")[-2000:])
            yield (Outcome(*begun, HANG, "", "") if line is None else
                   Outcome(*begun, CRASH, f"ended with {worker.returncode}", ""))
            return made + 1
        finally:
            worker.kill()
            worker.wait()
            worker.stdout.close()


class _Lines:
    """The lines of a pipe."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._read: list[bytes] = []
        self._rest = b""

    def next(self, longest: float) -> bytes | None:
        """The next line, b"" at the end; None after so many seconds without one."""
        while not self._read:
            if not select.select([self._source], [], [], longest)[0]:
                return None
            data = os.read(self._source, 1 << 16)
            if not data:
                return b""
            *self._read, self._rest = (self._rest + data).split(b"\n")
        return self._read.pop(0)


def table(found: list[Outcome]) -> str:
    """Counts by room, in Markdown."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        rooms[one.room or "gt"][one.kind] += 1
        rooms["all"][one.kind] += 1
    lines = ["| room | calls | " + " | ".join(CLASSES) + " |",
             "|---|--:|" + "--:|" * len(CLASSES)]
    for room in [*(r for r in rooms if r != "all"), "all"]:
        counts = rooms[room]
        cells = [f"{counts[kind]:,}" for kind in CLASSES]
        lines.append(f"| {room} | {counts.total():,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
