"""The listeners that gtensor has: what they measure, print, refuse, and leave behind."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import nvtx
from gtensor.profiler.listeners import Printer, Ranges, SavedArrays
from gtensor.system.bus import bus


def _step() -> gt.Tensor:
    x = gt.ones(3, requires_grad=True)
    (x * x).sum().backward()
    return x


@pytest.fixture
def seen(monkeypatch):
    """The labels of ranges as they open, None where one closes."""
    seen = []
    monkeypatch.setattr(nvtx, "enabled", lambda: True)
    monkeypatch.setattr(nvtx, "push", seen.append)
    monkeypatch.setattr(nvtx, "pop", lambda: seen.append(None))
    return seen


class Net(gt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = gt.nn.Linear(2, 2)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.inner(x) * 2.0


def test_ranges_are_named_by_module_op_and_phase_and_closed_in_pairs(seen):
    net = Net()
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    with gt.profiler.nvtx_ranges():
        net(gt.ones((1, 2))).sum().backward()
        optimizer.step()
    assert seen[:4] == ["Net.inner linear forward", None, "Net multiply forward", None]
    assert {"backward", "sum backward", "Net multiply backward", "Net.inner linear backward",
            "update", "sgd forward"} <= {*seen}
    assert seen.count(None) == len(seen) / 2 == 3 + 4 + 1 + 2  # paths, rules, update, phases


def test_an_error_closes_its_range(seen):
    with gt.profiler.nvtx_ranges(), pytest.raises(ValueError):
        gt.ones(2) + gt.ones(3)
    assert seen == ["add forward", None] and not bus.ops


def test_a_range_whose_end_an_interrupt_took_is_closed_with_the_one_around_it(seen):
    ranges, events = Ranges(), [gt.system.bus.PhaseEvent(name) for name in "abc"]
    for event in events:
        ranges.phase_begins(event)
    ranges.phase_ends(events[1])
    assert seen == ["a", "b", "c", None, None]
    ranges.phase_ends(events[2])
    ranges.close()
    assert seen[5:] == [None]


def test_without_nvtx_nothing_listens(monkeypatch):
    monkeypatch.setattr(nvtx, "enabled", lambda: False)
    with gt.profiler.nvtx_ranges():
        assert not bus.listeners


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
