"""A fork while another thread works: the child has what locks guard whole, and the locks free."""

from __future__ import annotations

import ast
import os
import signal
import threading
import warnings
from pathlib import Path

import pytest

import gtensor as gt
from gtensor.backend import devices
from gtensor.backend.ordering import Ordering
from gtensor.engine.handle import tensor
from gtensor.engine.walk import backward, walk
from gtensor.memory import Arena, HostSegments, Workspace
from gtensor.memory.contract import adaptors
from gtensor.system import fork_safety


class Slow(HostSegments):
    """A source whose system call takes until the main thread has forked, or so many seconds."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.inside, self.forked = threading.Event(), threading.Event()

    def acquire(self, nbytes):
        self.inside.set()
        self.forked.wait(self.seconds)
        return super().acquire(nbytes)


def child_allocates(seconds: float, within: int) -> bool:
    source = Slow(seconds)
    arena = Arena(source)
    thread = threading.Thread(target=lambda: arena.allocate(100 << 20))
    thread.start()
    assert source.inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(within)
        arena.allocate(1000)
        os._exit(0)
    source.forked.set()
    _, status = os.waitpid(child, 0)
    thread.join()
    arena.allocate(1000)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, if a test imported it
def test_a_child_forked_in_the_middle_of_an_allocation_can_allocate():
    assert child_allocates(0.2, within=60)  # the fork waits for the end of the allocation


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, if a test imported it
def test_planted_fault_a_lock_that_forks_do_not_know_is_caught(monkeypatch):
    monkeypatch.setattr("gtensor.memory.arena.arena.free_at_forks", lambda *locks: None)
    assert not child_allocates(60, within=2)
    assert not fork_safety._held


def free_in_a_child(lock) -> bool:
    """Whether a lock is free in a child that is forked while another thread has it."""
    inside = threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            threading.Event().wait(0.05)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads at a fork are what is tested
        child = os.fork()
    if not child:
        os._exit(not lock.acquire(False))
    _, status = os.waitpid(child, 0)
    thread.join()
    return status == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_forked_in_the_middle_of_anything_has_all_locks_free():
    workspace, ordering = Workspace("cpu"), Ordering(lambda stream: None)
    for lock in (
            tensor._first_fact, walk._claims, backward.commits, devices._lock,
            adaptors._chains, gt.random.generator().bit_generator.lock, workspace._lock,
            ordering._lock):
        assert free_in_a_child(lock)
    assert not fork_safety._held


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_fork_waits_for_no_lock_while_it_holds_one():
    """Else it and a thread that takes two locks in the other order would wait for each other."""
    first, second = threading.Lock(), threading.Lock()
    fork_safety.free_at_forks(first, second)
    inside = threading.Event()

    def work() -> None:
        with second:
            inside.set()
            threading.Event().wait(0.1)  # the fork begins
            with first:
                pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        os._exit(first.locked() or second.locked())
    thread.join(60)
    assert not thread.is_alive()
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_below_a_lock_of_its_own_thread_goes_on(monkeypatch):
    """As below a finalizer, where the lock is none that a thread may take twice."""
    monkeypatch.setattr(fork_safety, "PATIENCE", 0.05)
    own = threading.Lock()
    fork_safety.free_at_forks(own)
    with own:
        fork_safety._before()
        fork_safety._after()
    assert not own.locked() and not fork_safety._held


def test_every_lock_is_known_to_forks():
    """But those of a DataLoader's workers, whose passes end at a fork, and the forks' own."""
    package = Path(gt.__file__).parent
    unknown = []
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(kind in text for kind in ("Lock(", "Condition(", "Semaphore(")):
            continue
        tree = ast.parse(text)
        named = {ast.unparse(argument) for call in ast.walk(tree)
                 if isinstance(call, ast.Call) and ast.unparse(call.func) == "free_at_forks"
                 for argument in call.args}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and (
                    ast.unparse(node.value.func).split(".")[-1]
                    in ("Lock", "RLock", "Condition", "Semaphore")):
                name = ast.unparse(node.targets[0])
                if name not in named:
                    unknown.append(f"{path.name} {name}")
    assert sorted(unknown) == ["fork_safety.py _forking", "workers.py self.changed",
                               "workers.py self.drawing"]
