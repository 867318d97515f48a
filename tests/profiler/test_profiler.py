"""The listeners that gtensor has: what they measure, print, refuse, and leave behind."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from simulated import SimulatedSegments

import gtensor as gt
from gtensor.backend import nvtx
from gtensor.memory import Arena
from gtensor.profiler.listeners import Printer, SavedArrays
from gtensor.profiler.ranges import Ranges
from gtensor.system.bus import RangeEvent, bus


def _step() -> gt.Tensor:
    x = gt.ones(3, requires_grad=True)
    (x * x).sum().backward()
    return x


# -- ranges ----------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """The labels of ranges as they open, None where one closes."""
    seen = []
    monkeypatch.setattr(nvtx, "attached", lambda: True)
    monkeypatch.setattr(nvtx, "push", lambda category, label, *more: seen.append(label))
    monkeypatch.setattr(nvtx, "pop", lambda: seen.append(None))
    return seen


def test_an_error_closes_its_range(seen):
    with gt.profiler.nvtx_ranges():
        with pytest.raises(ValueError):
            gt.ones(2) + gt.ones(3)
        with pytest.raises(KeyError), gt.profiler.range("mine"):
            raise KeyError
    assert seen == ["add forward", None, "mine", None] and not bus.ops


def test_a_range_whose_end_an_interrupt_took_is_closed_with_the_one_around_it(seen):
    ranges, events = Ranges(), [RangeEvent(name, None, "user") for name in "abc"]
    for event in events:
        ranges.range_begins(event)
    ranges.range_ends(events[1])
    assert seen == ["a", "b", "c", None, None]
    ranges.range_ends(events[2])
    ranges.close()
    assert seen[5:] == [None]


def test_what_an_arena_does_short_of_memory_is_told(seen):
    arena = Arena(SimulatedSegments(8 << 20))
    with gt.profiler.nvtx_ranges():
        kept = arena.allocate(1 << 20)
        with pytest.raises(MemoryError):
            arena.allocate(16 << 20)
    del kept
    labels = [label for label in seen if label]
    assert labels[0] == "segment acquired"
    assert labels[-1] == "short of memory: fail" and "short of memory: collect" in labels


@pytest.mark.parametrize(("given", "error", "said"), [
    ((3,), TypeError, "a range named 3 was given; wanted a str"),
    (("a", "b"), TypeError, "payload='b' was given; wanted an int, a float or None"),
    (("a", 1, "c"), ValueError, "category='c' was given; wanted one of user, data")])
def test_another_range_is_refused(seen, given, error, said):
    with gt.profiler.nvtx_ranges(), pytest.raises(error, match=said):
        gt.profiler.range(*given)
    assert seen == []


def test_without_a_profiler_ranges_do_nothing():
    @gt.profiler.ranged
    def squared(x, *, and_more=0):
        """The square."""
        return x * x + and_more

    with gt.profiler.nvtx_ranges():
        assert not bus.listeners
    with pytest.raises(KeyError), gt.profiler.range("mine", 3):
        raise KeyError
    assert squared(3, and_more=1) == 10 and squared.__doc__ == "The square."


# -- debug levels ----------------------------------------------------------------------------------


def test_a_line_per_op():
    out = io.StringIO()
    with gt.listen(Printer(source=True, out=out)):
        _step()
        with pytest.raises(ValueError):
            gt.ones(2) + gt.ones(3)
    lines = out.getvalue().splitlines()
    assert [line.split("bytes")[1].split("  ")[1] for line in lines] == [
        "multiply forward", "sum forward", "gradient forward", "sum backward", "multiply backward",
        "add forward raised ValueError"]
    assert " 36 bytes" in lines[0] and all("test_profiler.py:" in line for line in lines)


def test_a_saved_array_written_from_outside_is_refused():
    def run(write):
        x = gt.tensor(np.arange(3.0), requires_grad=True)
        y = x * 2.0
        loss = (y * y).sum()
        write(y)
        loss.backward()

    with gt.listen(SavedArrays()):
        run(lambda y: None)
        with pytest.raises(gt.GradientError, match=r"multiply \(.*y \* y.* written from outside"):
            run(lambda y: y.detach().array.__setitem__(0, 5.0))
    run(lambda y: y.detach().array.__setitem__(0, 5.0))


@pytest.mark.parametrize(("level", "wanted"), [("1", 0), ("2", 1), ("3", 2), ("4", 2)])
def test_debug_levels(level, wanted):
    program = ("import gtensor as gt; from gtensor.system.bus import bus; (gt.ones(3) + 1.0);"
               "print(len(bus.listeners))")
    child = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True,
                           text=True, env={**os.environ, "GTENSOR_DEBUG": level})
    assert child.stdout.split()[-1] == str(wanted)
    assert ("add forward" in child.stderr) == (wanted > 0)
    assert ("<string>:1" in child.stderr) == (level == "4")
