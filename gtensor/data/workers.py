"""Batches made ahead by threads and returned in order; a bounded number waits at a time."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Generator, Iterator
from time import monotonic
from typing import Any

from gtensor.backend.threads import one_thread_here

PATIENCE = 5.0  # seconds that workers have at the end of a pass, as in PyTorch
_this_thread = threading.local()  # `works`: whether it is one of a pool's


class WorkerTimeout(RuntimeError):
    """No worker made the next result in time."""


def made_ahead(
    jobs: Iterator[Any], make: Callable[[Any], Any], workers: int, ahead: int,
    timeout: float | None = None,
) -> Generator[Any, None, None]:
    """`make(job)` for every job, in order, by `workers` threads at most `ahead` jobs ahead.

    One thread at a time draws a job. An exception of `jobs` or `make` is raised in the order of the
    results; WorkerTimeout, if the next one is not there after `timeout` seconds. The threads end
    when the iterator is exhausted, closed or dropped. It waits `PATIENCE` for the jobs that they
    are at, and after a timeout or an interrupt not at all: one that hangs is left behind. In a fork
    of this process, which has no such threads, the next result is a RuntimeError.
    """
    pool = _Pool(jobs, make, ahead)
    patience = PATIENCE
    threads = [threading.Thread(target=pool.work, name=f"gtensor-data-{i}", daemon=True)
               for i in range(workers)]
    try:
        for thread in threads:
            thread.start()
        while True:
            try:
                found, value = pool.take(timeout)
            except BaseException as error:  # undone
                if isinstance(error, WorkerTimeout) or not isinstance(error, Exception):
                    patience = 0.0
                raise
            if not found:
                return
            yield value
    finally:
        if os.getpid() != pool.process:
            pass  # a fork: threads that it does not have may hold the locks
        elif getattr(_this_thread, "works", False):
            # The garbage collector dropped the iterator while it ran in a worker. That may hold a
            # lock of this pool, so it neither takes one nor waits; another thread does.
            _thread.start_new_thread(pool.stop, ())
        else:
            pool.stop()
            end = monotonic() + patience
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, end - monotonic()))


class _Pool:
    """The threads' shared state: `drawn` jobs were begun, `taken` results were returned."""

    def __init__(self, jobs: Iterator[Any], make: Callable[[Any], Any], ahead: int) -> None:
        self.jobs = jobs
        self.make = make
        self.ahead = ahead
        self.drawing = threading.Lock()
        self.changed = threading.Condition()
        self.results: dict[int, tuple[Any, BaseException | None]] = {}
        self.drawn = self.taken = 0
        self.ended = False  # no job is left, or the iterator has ended
        self.process = os.getpid()

    def work(self) -> None:
        """What each thread does: draw, make, deliver."""
        _this_thread.works = True
        one_thread_here()  # others work at the same time, and the thread that trains
        while True:
            with self.drawing:  # held while waiting too: jobs are drawn in order
                with self.changed:
                    self.changed.wait_for(
                        lambda: self.ended or self.drawn < self.taken + self.ahead)
                    if self.ended:
                        return
                    number = self.drawn
                try:
                    job = next(self.jobs)
                except StopIteration:
                    self.stop()
                    return
                except BaseException as error:  # delivered
                    self._deliver(number, None, error)
                    self.stop()
                    return
                with self.changed:
                    self.drawn += 1
            try:
                self._deliver(number, self.make(job), None)
            except BaseException as error:  # delivered
                self._deliver(number, None, error)

    def _deliver(self, number: int, value: object, error: BaseException | None) -> None:
        with self.changed:
            self.drawn = max(self.drawn, number + 1)
            self.results[number] = value, error
            self.changed.notify_all()

    def take(self, timeout: float | None) -> tuple[bool, Any]:
        """Wait for the next result in order; (False, None) after the last."""
        if os.getpid() != self.process:
            raise RuntimeError(f"this pass was begun in process {self.process}, whose worker "
                               f"threads its fork {os.getpid()} does not have; begin a new pass "
                               "over the DataLoader there")
        with self.changed:
            if not self.changed.wait_for(lambda: self.taken in self.results
                                         or (self.ended and self.taken == self.drawn), timeout):
                raise WorkerTimeout(f"a DataLoader's workers did not make a batch within "
                                    f"timeout={timeout:g} s; one hangs, or needs longer")
            if self.taken not in self.results:
                return False, None
            value, error = self.results.pop(self.taken)
            self.taken += 1
            self.changed.notify_all()
        if error is not None:
            try:
                raise error
            finally:
                del error  # else this frame and the exception refer to each other
        return True, value

    def stop(self) -> None:
        """Let no thread begin another job."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()
