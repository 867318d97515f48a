"""Two threads, each within an operation of one arena, use the other arena: neither hangs."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from simulated import SimulatedSegments

from gtensor.memory import Arena
from gtensor.system import fork_safety

from ..invariants import check

MIB = 1 << 20


class Asking(SimulatedSegments):
    """A source that asks another arena within its call, as a finalizer there would."""

    def __init__(self, barrier):
        super().__init__(1 << 30)
        self.barrier = barrier
        self.other = None
        self.errors = []

    def acquire(self, nbytes):
        other, self.other = self.other, None
        if other is not None:
            self.barrier.wait(60)
            try:
                other.allocate(MIB)
            except RuntimeError as error:
                self.errors.append(str(error))
        return super().acquire(nbytes)


@pytest.fixture
def pair():
    barrier = threading.Barrier(2)
    arenas = [Arena(Asking(barrier), name) for name in ("one", "two")]
    for arena, other in (arenas, arenas[::-1]):
        arena.source.other = other
    return arenas


def run(*works, within=10.0):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within)
    return not any(thread.is_alive() for thread in threads)


def test_each_in_the_middle_of_its_own_asks_the_other(pair, monkeypatch, within=10.0):
    monkeypatch.setattr(fork_safety, "PATIENCE", 0.3)
    blocks = []
    works = [lambda arena=arena: blocks.append(arena.allocate(3 * MIB)) for arena in pair]
    assert run(*works, within=within), "they wait for each other"
    errors = [error for arena in pair for error in arena.source.errors]
    assert errors and "in the middle of an allocation elsewhere" in errors[0]
    assert len(blocks) == 2
    for arena in pair:
        check(arena, [block for block in blocks if block.owner is arena])


def test_a_thread_outside_an_allocation_waits_without_a_limit(pair, monkeypatch):
    monkeypatch.setattr(fork_safety, "PATIENCE", 0.05)
    one, _ = pair
    held, blocks = threading.Event(), []

    def hold():
        with one._lock:
            held.set()
            time.sleep(0.5)

    def ask():
        held.wait(60)
        one.source.other = None
        blocks.append(one.allocate(MIB))

    assert run(hold, ask) and len(blocks) == 1


def test_a_waiting_thread_is_not_disturbed_by_arenas_made_and_dropped(monkeypatch):
    monkeypatch.setattr(fork_safety, "PATIENCE", 1e-5)  # so that a waiting thread polls
    arena, done, errors = Arena(SimulatedSegments(1 << 30)), threading.Event(), []

    def hold():
        while not done.is_set():
            with arena._lock:
                time.sleep(1e-5)

    def ask():
        try:
            while not done.is_set():
                arena.allocate(MIB)
        except BaseException as error:
            errors.append(error)

    def come_and_go():
        deadline = time.perf_counter() + 0.5
        while time.perf_counter() < deadline:
            for _ in range(10):
                Arena(SimulatedSegments(1 << 30))
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert run(hold, ask, ask, ask, come_and_go) and not errors
    finally:
        sys.setswitchinterval(interval)


def test_planted_fault_a_wait_without_an_end_is_caught(pair, monkeypatch):
    ended = threading.Event()

    def wait_for(lock, name):
        ended.wait(60)
        raise RuntimeError("the test is over")

    monkeypatch.setattr("gtensor.memory.arena.arena.wait_for", wait_for)
    try:
        with pytest.raises(AssertionError, match="they wait for each other"):
            test_each_in_the_middle_of_its_own_asks_the_other(pair, monkeypatch, within=0.5)
    finally:
        ended.set()
