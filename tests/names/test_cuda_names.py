"""`gt.cuda`: PyTorch's names for what a program asks about its devices."""

from __future__ import annotations

from types import SimpleNamespace

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


def test_every_stream_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    device = SimpleNamespace(synchronize=lambda: waited.append("the current stream"),
                             streams=SimpleNamespace(synchronize=lambda: waited.append("all")))
    monkeypatch.setattr(gt.cuda, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(gt.cuda, "get_device", lambda name: device)
    gt.cuda.synchronize()
    assert waited == ["all"]


@pytest.mark.gpu
@pytest.mark.host_cuda
def test_the_work_of_a_side_stream_is_done_after_a_wait_for_the_device() -> None:
    with gt.stream("cuda"):
        x = gt.ones((256, 256), device="cuda")
        for _ in range(50):
            x = x @ x / 256
        event = gt.Event("cuda")
        event.record()
    gt.cuda.synchronize()
    assert event.done() and float(x[0, 0]) == 1.0


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
