"""Where the time of the test suite goes.

As a plug-in of pytest it writes a line per test, with the seconds that it took:

    SUITE_TIMES=times PYTHONPATH=profiling python -m pytest -p suite_times

As a program it sums such a folder up, as the tables of docs/testing.md:

    python profiling/suite_times.py times
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STARTED = "imports and collection"  # of a process that runs tests, until its first one
LEAST = 0.005  # of all, that a folder has its own row
_file = pytest.StashKey[Any]()


# -- the plug-in -----------------------------------------------------------------------------------


def _seconds() -> tuple[float, float, float]:
    """Of this process's processors, of its children's that have ended, and of the clock."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), ended.ru_utime + ended.ru_stime, time.monotonic()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Open this process's file; the first process of xdist collects and runs nothing."""
    folder = os.environ.get("SUITE_TIMES")
    if folder and session.items:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = (Path(folder) / f"{os.getpid()}.jsonl").open("w", buffering=1)
        session.config.stash[_file] = file
        own, children, _ = _seconds()
        print(json.dumps((STARTED, own, children, own + children)), file=file)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test took, with its fixtures."""
    before = _seconds()
    result = yield
    file = item.config.stash.get(_file, None)
    if file is not None:
        spent = [b - a for a, b in zip(before, _seconds(), strict=True)]
        print(json.dumps((item.nodeid, *spent)), file=file)
    return result


# -- the tables ------------------------------------------------------------------------------------


class Sum:
    """Of some tests: how many, and their seconds."""

    def __init__(self) -> None:
        self.tests = 0
        self.own = self.children = self.clock = 0.0

    def add(self, own: float, children: float, clock: float) -> None:
        self.tests += 1
        self.own += own
        self.children += children
        self.clock += clock

    @property
    def processors(self) -> float:
        return self.own + self.children


def folder(name: str, own: float, children: float, clock: float) -> str:
    path = name.partition("::")[0].removeprefix("tests/")
    return path.split("/")[0] if "/" in path else name if name == STARTED else "files beside them"


def kind(name: str, own: float, children: float, clock: float) -> str:
    if name == STARTED:
        return name
    if clock > 0.5 and own + children < clock / 2:
        return "waits for longer than it computes"
    if children > own:
        return "starts processes that take longer than the test's own"
    return "takes half a second or more" if own >= 0.5 else "takes less"


def table(lines: list[Any], title: str, group: Callable[..., str]) -> str:
    """Markdown, the longest first."""
    sums: dict[str, Sum] = defaultdict(Sum)
    total = Sum()
    for line in lines:
        sums[group(*line)].add(*line[1:])
        total.add(*line[1:])
    rest = Sum()
    for name, found in [*sums.items()]:
        if found.processors < LEAST * total.processors:
            del sums[name]
            for key in vars(rest):
                setattr(rest, key, getattr(rest, key) + getattr(found, key))
    rows = sorted(sums.items(), key=lambda row: -row[1].processors)
    rows += [("others", rest)] * bool(rest.tests) + [("all", total)]
    return "\n".join([
        f"| {title} | tests | CPU seconds | of these in other processes | seconds |",
        "|---|--:|--:|--:|--:|",
        *(f"| {name} | {found.tests:,} | {found.processors:.0f} | {found.children:.0f} | "
          f"{found.clock:.0f} |" for name, found in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Sum up the seconds of tests, by folder and by kind.")
    parser.add_argument("folder", type=Path, help="that SUITE_TIMES named")
    files = sorted(parser.parse_args().folder.glob("*.jsonl"))
    if not files:
        parser.error("found no *.jsonl in the folder; wanted those of a run with SUITE_TIMES set")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    print(table(lines, "folder", folder), table(lines, "kind", kind), sep="\n\n")


if __name__ == "__main__":
    main()
