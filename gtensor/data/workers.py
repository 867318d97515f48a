"""Batches made ahead by threads and returned in order; a bounded number waits at a time."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

_this_thread = threading.local()  # `works`: whether it is one of a pool's


def made_ahead(
    jobs: Iterator[Any], make: Callable[[Any], Any], workers: int, ahead: int
) -> Generator[Any, None, None]:
    """`make(job)` for every job, in order, by `workers` threads at most `ahead` jobs ahead.

    One thread at a time draws a job. An exception of `jobs` or `make` is raised in the order of the
    results. The threads end when the iterator is exhausted, closed or dropped. In a fork of this
    process, which has no such threads, the next result is a RuntimeError.
    """
    pool = _Pool(jobs, make, ahead)
    threads = [threading.Thread(target=pool.work, name=f"gtensor-data-{i}", daemon=True)
               for i in range(workers)]
    try:
        for thread in threads:
            thread.start()
        while True:
            found, value = pool.take()
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
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


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
                except BaseException as error:
                    self._deliver(number, None, error)
                    self.stop()
                    return
                with self.changed:
                    self.drawn += 1
            try:
                self._deliver(number, self.make(job), None)
            except BaseException as error:
                self._deliver(number, None, error)

    def _deliver(self, number: int, value: object, error: BaseException | None) -> None:
        with self.changed:
            self.drawn = max(self.drawn, number + 1)
            self.results[number] = value, error
            self.changed.notify_all()

    def take(self) -> tuple[bool, Any]:
        """Wait for the next result in order; (False, None) after the last."""
        if os.getpid() != self.process:
            raise RuntimeError(f"this pass was begun in process {self.process}, whose worker "
                               f"threads its fork {os.getpid()} does not have; begin a new pass "
                               "over the DataLoader there")
        with self.changed:
            self.changed.wait_for(lambda: self.taken in self.results
                                  or (self.ended and self.taken == self.drawn))
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
