"""pytest -p gpu_tests: tests on a GPU, where a fault must cost no more than its own test.

    PYTHONPATH=.:profiling python -m pytest -p gpu_tests -n 14 --dist load -m "gpu and not slow"

- The tests run in the order of their worth (`WORTH`). `--dist load` hands them out in that order;
  `worksteal` would begin with as much of the last files as of the first, and a run that is cut off
  would lack some of each.
- A test that leaves a lost CUDA context fails, and its worker ends: every later test in it would
  fail, too. pytest-xdist starts another worker, which goes on with the next test.
- A test that takes longer than GPU_CHECK_TEST_SECONDS (45) ends its worker, after the stacks of all
  threads. A thread that waits for the GPU hears no signal, so nothing less would end it.
- A failure is printed when it happens, as "FAILED" and the test's id, the reason in one line, and
  the traceback: whatever becomes of the run, its log says what failed.
- With GPU_CHECK_IDS, a file of ids, only these tests run; one that is gone is no error.
- How far the run is, is printed every 10 %, and a warning once.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lost_context import lost

WORTH = ("memory", "backend", "engine", "kernels", "ops/linalg")  # folders of tests/, before all
SECONDS = float(os.environ.get("GPU_CHECK_TEST_SECONDS", 45))
OUTPUT, ERRORS = os.dup(1), os.dup(2)  # before pytest begins to capture what tests write


def worth(item: pytest.Item) -> int:
    """The place of a test's folder in `WORTH`."""
    path = item.nodeid.removeprefix("tests/")
    return next((place for place, folder in enumerate(WORTH) if path.startswith(folder + "/")),
                len(WORTH))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "GPU_CHECK_IDS" in os.environ:
        wanted = set(Path(os.environ["GPU_CHECK_IDS"]).read_text().splitlines())
        # A file that was not collected stands there for all its tests.
        kept = [item for item in items
                if not wanted.isdisjoint((item.nodeid, item.nodeid.partition("::")[0]))]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    items.sort(key=worth)


def pytest_configure(config: pytest.Config) -> None:
    if "GPU_CHECK_REHEARSAL" in os.environ:
        compare_nothing()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Telling(), "gpu_tests telling")


def compare_nothing() -> None:
    """For devices on which no kernel runs: a test goes on where it would find wrong values.

    PYTHONOPTIMIZE and pytest's `--assert=plain` do the same for assert statements.
    """
    from gtensor.testing.compare import close

    # Its code is replaced, since other modules have imported it by now.
    close.__code__ = (lambda *given, **named: None).__code__
    for name in dir(np.testing):
        if name.startswith("assert_"):
            setattr(np.testing, name, lambda *given, **named: None)


# -- in the process that runs a test ---------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process with its stacks if the test takes too long."""
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=ERRORS)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test that passes and leaves a lost context has failed."""
    report: Any = yield
    if report.when == "teardown" and report.passed and (code := lost()):
        report.outcome = "failed"
        report.longrepr = f"the test passed and left CUDA error {code}, a lost context"
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Once a failure is told, end a process whose context is lost."""
    if report.failed and (code := lost()):
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(3)
        pytest.exit(f"CUDA error {code}: the context is lost, and no later test could pass",
                    returncode=3)


# -- in the process that prints --------------------------------------------------------------------


class Telling:
    """Prints failures, warnings and progress as they come."""

    def __init__(self) -> None:
        self.wanted = self.told = 0
        self.run: set[str] = set()  # ids: a test that loses the context is reported twice
        self.failed: set[str] = set()
        self.warned: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.wanted = len(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.wanted = len(session.items) or self.wanted

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letters: a line of them would swallow the start of a line that says what failed."""
        if report.when == "call" or report.skipped:
            return report.outcome, "", ""
        return ("error" if report.failed else ""), "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        crashed = "crashed while running" in report.longreprtext  # after it has told its failure
        if report.failed and not (crashed and report.nodeid in self.failed):
            self.failed.add(report.nodeid)
            tell(f"FAILED {report.nodeid}", reason(report), report.longreprtext,
                 *(f"-- {name}\n{text}" for name, text in report.sections))
        if report.when == "call" or not report.passed:
            self.run.add(report.nodeid)
        if len(self.run) * 10 >= (self.told + 1) * self.wanted > 0:
            self.told = len(self.run) * 10 // self.wanted
            tell(f"{len(self.run)} of {self.wanted} run, {len(self.failed)} failed")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            tell(f"FAILED {report.nodeid}", "    reason: not collected", report.longreprtext)

    def pytest_warning_recorded(
        self, warning_message: Any, nodeid: str, location: Any,
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        if text not in self.warned:
            self.warned.add(text)
            tell(f"warning in {nodeid or 'collection'}: {text[:300]}")


def reason(report: pytest.TestReport) -> str:
    """The last line of an error that says something, without its traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"    reason: {' '.join(lines[:3])[:240]}" if lines else "    reason: none given"


def tell(*lines: str) -> None:
    os.write(OUTPUT, ("\n".join(filter(None, lines)) + "\n").encode(errors="replace"))
