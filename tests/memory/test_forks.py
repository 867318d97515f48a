"""A fork while another thread allocates: the child has the arena whole, and its lock free."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from gtensor import locks
from gtensor.memory import Arena, HostSegments


class Slow(HostSegments):
    """A source whose system call takes until the main thread is about to fork, and a bit more."""

    def __init__(self):
        super().__init__()
        self.inside = threading.Event()

    def acquire(self, nbytes):
        self.inside.set()
        threading.Event().wait(0.2)
        return super().acquire(nbytes)


def child_allocates() -> bool:
    source = Slow()
    arena = Arena(source)
    thread = threading.Thread(target=lambda: arena.allocate(100 << 20))
    thread.start()
    assert source.inside.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(2)
        arena.allocate(1000)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    thread.join()
    arena.allocate(1000)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, if a test imported it
def test_a_child_forked_in_the_middle_of_an_allocation_can_allocate():
    assert child_allocates()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, if a test imported it
def test_planted_fault_a_lock_that_forks_do_not_know_is_caught(monkeypatch):
    monkeypatch.setattr("gtensor.memory.arena.free_at_forks", lambda *locks: None)
    assert not child_allocates()
    assert not locks._held
