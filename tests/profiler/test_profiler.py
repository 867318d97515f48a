"""The observers: what they see, that they nest, and that they leave nothing behind."""

from __future__ import annotations

import pytest

import gtensor as gt
from gtensor.backend import nvtx
from gtensor.engine.context import observers


def _step() -> gt.Tensor:
    x = gt.ones(3, requires_grad=True)
    (x * x).sum().backward()
    return x


def test_profile_counts_ops_and_phases():
    with gt.profiler.profile() as found:
        _step()
    assert found.calls["multiply", "forward"] == found.calls["multiply", "backward"] == 1
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert "multiply" in found.table() and observers.current is None


def test_ranges_are_pushed_and_popped_in_pairs(monkeypatch):
    seen = []
    monkeypatch.setattr(nvtx, "push", seen.append)
    monkeypatch.setattr(nvtx, "pop", lambda: seen.append(None))
    with gt.profiler.nvtx_ranges(), gt.profiler.profile() as found:
        x = _step()
    assert x.grad.tolist() == [2, 2, 2]
    assert "multiply forward" in seen and "sum backward" in seen
    assert seen.count(None) == len(seen) / 2 == sum(found.calls.values())


def test_an_error_closes_its_range(monkeypatch):
    seen = []
    monkeypatch.setattr(nvtx, "push", seen.append)
    monkeypatch.setattr(nvtx, "pop", lambda: seen.append(None))
    with gt.profiler.nvtx_ranges(), pytest.raises(ValueError):
        gt.ones(2) + gt.ones(3)
    assert seen == ["add forward", None] and observers.current is None
