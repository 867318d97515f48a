"""`gt.cuda`: PyTorch's names for what a program asks about its devices."""

from __future__ import annotations

import pytest

import gtensor as gt


def test_without_a_device_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gt.cuda, "cuda_device_count", lambda: 0)
    assert not gt.cuda.is_available()
    gt.cuda.synchronize()
    gt.cuda.reset_peak_memory_stats()
    gt.cuda.empty_cache()
    assert [gt.cuda.memory_allocated(), gt.cuda.max_memory_allocated(),
            gt.cuda.memory_reserved(), gt.cuda.max_memory_reserved()] == [0, 0, 0, 0]


@pytest.mark.gpu
@pytest.mark.parametrize("device", [None, 0, "cuda", "cuda:0", gt.device])
def test_a_device_is_counted_by_its_arena(device: object) -> None:
    if device is gt.device:
        device = gt.device("cuda")
    assert gt.cuda.is_available() and gt.cuda.device_count() >= 1
    gt.cuda.empty_cache()
    gt.cuda.reset_peak_memory_stats(device)
    before = gt.cuda.memory_allocated(device)
    x = gt.zeros(1 << 20, device="cuda")
    assert gt.cuda.memory_allocated(device) - before == x.nbytes
    assert gt.cuda.memory_reserved(device) >= x.nbytes
    del x
    gt.cuda.synchronize(device)
    gt.cuda.empty_cache()
    assert gt.cuda.memory_allocated(device) == before
    assert gt.cuda.max_memory_allocated(device) - before == 1 << 22
    assert gt.cuda.max_memory_reserved(device) >= 1 << 22
