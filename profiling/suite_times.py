"""Where the time of the test suite goes.

As a plug-in of pytest it writes one line per test, of the test's name and its seconds:

    SUITE_TIMES=times python -m pytest -p suite_times

As a program it sums these files up, as the table in docs/testing.md:

    python profiling/suite_times.py times/*
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STARTED = "until its first test"  # imports and collection of a process that runs tests
_lines = pytest.StashKey[Any]()


def _seconds() -> tuple[float, float, float]:
    """Of this process's processors, of its children's that have ended, and of the clock."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), ended.ru_utime + ended.ru_stime, time.monotonic()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Open this process's file; xdist's first process runs no tests."""
    folder = os.environ.get("SUITE_TIMES")
    if folder and not (session.config.option.dist != "no"
                       and not hasattr(session.config, "workerinput")):
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = (Path(folder) / f"{os.getpid()}.jsonl").open("w", buffering=1)
        session.config.stash[_lines] = file
        own, children, _ = _seconds()
        print(json.dumps((STARTED, own, children, own + children)), file=file)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test took, with its fixtures."""
    before = _seconds()
    result = yield
    file = item.config.stash.get(_lines, None)
    if file is not None:
        spent = [b - a for a, b in zip(before, _seconds(), strict=True)]
        print(json.dumps((item.nodeid, *spent)), file=file)
    return result
