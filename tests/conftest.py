"""What all tests share: which are quick; those without their GPU are left out aloud; seeds."""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import hostcuda
from gtensor.system.bus import bus

_NEEDS = {"gpu": 1, "multi_gpu": 2}  # marker -> CUDA devices that its tests need
_HOST = "host_cuda"  # marks tests of the host devices themselves
# Quick are all tests but those in folders of tests that start or compile programs, and those with
# one of these marks: a new test is quick until it says otherwise. Of a test with more cases than
# CASES only as many are, evenly spread: what they share breaks in all, and `make test` runs all.
_PROGRAMS = {"cli", "distributed", "hostcuda", "kernels", "profiling", "train"}
_NOT_QUICK = {"gpu", "multi_gpu", "host_cuda", "slow", "bench", "thorough"}
CASES = 8
END = 120  # seconds that the process may take to end once all tests have
_left_out = pytest.StashKey[dict[str, int]]()


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; children inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _starts_programs(path: Path) -> bool:
    return not _PROGRAMS.isdisjoint(path.relative_to(Path(__file__).parent).parts)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` does not even import the folders without a quick test."""
    skipped = config.option.markexpr == "quick" and collection_path.is_dir()
    return True if skipped and _starts_programs(collection_path) else None


def _mark_quick(items: list[pytest.Item]) -> None:
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not _starts_programs(item.path) and not any(map(item.get_closest_marker, _NOT_QUICK)):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        count = min(len(cases), CASES)
        for i in range(count):
            cases[i * len(cases) // count].add_marker("quick")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the quick tests; deselect what this machine cannot run, counted, never silently."""
    if "quick" in config.option.markexpr:
        _mark_quick(items)
    found = gt.cuda_device_count()
    kept, gone = [], []
    counts = dict.fromkeys((*_NEEDS, _HOST), 0)
    for item in items:
        missing = [name for name, needed in _NEEDS.items()
                   if item.get_closest_marker(name) and found < needed]
        if item.get_closest_marker(_HOST) and not hostcuda.installed():
            missing.append(_HOST)
        (gone if missing else kept).append(item)
        if missing:
            counts[missing[-1]] += 1
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = kept
    config.stash[_left_out] = counts


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its counts to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_left_out, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker collects all tests, so the counts of one are those of the run."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line per reason for which tests were left out."""
    found = gt.cuda_device_count()
    wanted = {name: f"they need {needed} CUDA device(s), this machine has {found}"
              for name, needed in _NEEDS.items()} | {_HOST: "they need --host-cuda"}
    for name, count in config.stash.get(_left_out, {}).items():
        if count:
            terminalreporter.write_line(f"deselected {count} tests marked {name}: {wanted[name]}")


@pytest.fixture(autouse=True, scope="module")
def _settled() -> None:
    """What other modules imported and left stays: no collection has to look at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """A thread that waits for ever must not hold up the end of the run: it is named instead."""
    faulthandler.dump_traceback_later(END, exit=True, file=sys.__stderr__)


@pytest.fixture(autouse=True)
def _device_and_seeds(request: pytest.FixtureRequest) -> Iterator[None]:
    """The CPU is the default device, CUDA for tests marked `gpu`; random numbers have a seed."""
    before = gt.default_device()
    on_gpu = any(request.node.get_closest_marker(name) for name in _NEEDS)
    gt.set_default_device("cuda" if on_gpu else "cpu")
    gt.manual_seed(0)
    np.random.seed(0)
    yield
    gt.set_default_device(before)
    left = bus.listeners
    for registered in left:
        bus.remove(registered)
    assert not left, "the test left a listener registered, such as an open recording"
