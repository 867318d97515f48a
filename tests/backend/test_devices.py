"""Devices: names, defaults, errors; streams as the simulation runs them."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

import gtensor as gt
from gtensor.backend import devices
from gtensor.backend.streams import HostStream, SimulatedStream


def test_devices_are_interned_and_named():
    assert gt.device("cpu") is gt.device("cpu") and gt.device("cpu:0") is gt.device("cpu")
    assert str(gt.device("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:1", "", "cuda:-1"])
def test_a_device_that_does_not_exist_is_named(name):
    with pytest.raises(gt.DeviceError, match=repr(name) if name else "''"):
        gt.device(name)


@pytest.mark.skipif(gt.cuda_device_count() > 0, reason="this machine has a CUDA device")
def test_cuda_without_a_driver_says_why():
    with pytest.raises(gt.DeviceError, match="driver answers|not installed"):
        gt.device("cuda")


def test_with_device_sets_the_default_of_this_thread_only():
    seen = []
    other = devices.HostDevice(7) if hasattr(devices, "HostDevice") else type(gt.device("cpu"))(7)
    with other:
        assert gt.default_device() is other
        thread = threading.Thread(target=lambda: seen.append(gt.default_device()))
        thread.start()
        thread.join()
    assert seen == [gt.device("cpu")] and gt.default_device() is gt.device("cpu")


def test_mixing_devices_names_both():
    elsewhere = type(gt.device("cpu"))(3)
    elsewhere.type = "cuda"
    x, y = gt.ones(3), gt.ones(3)
    y._device = elsewhere
    for use in (lambda: x + y, lambda: gt.maximum(x, y), lambda: x.__iadd__(y)):
        with pytest.raises(gt.DeviceError, match=r"cpu.*cuda:3"):
            use()
    assert x.tolist() == [1, 1, 1]


def test_import_needs_no_cupy():
    code = ("import sys; sys.modules['cupy'] = None; import gtensor as gt; "
            "print((gt.ones(3) * 2).tolist())")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[2.0, 2.0, 2.0]"


def test_import_does_not_import_cupy():
    code = "import sys; import gtensor as gt; gt.ones(3); print('cupy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_the_host_stream_has_always_finished():
    stream = HostStream()
    event = stream.record()
    assert event.done() and stream.id == 0
    stream.wait(event)
    stream.synchronize()


def test_simulated_events_are_done_when_the_work_before_them_is():
    stream = SimulatedStream()
    stream.launch()
    event = stream.record()
    stream.launch()
    assert not event.done()
    assert stream.step() and event.done()
    stream.synchronize()
    assert stream.completed == stream.launched == 2 and not stream.step()


def test_a_simulated_stream_waits_for_another():
    first, second = SimulatedStream(), SimulatedStream()
    assert first.id != second.id
    first.launch()
    second.wait(first.record())
    second.launch()
    assert not second.step()  # its work is held back
    assert first.step() and second.step()


def test_synchronizing_a_simulated_stream_completes_what_it_waits_for():
    first, second = SimulatedStream(), SimulatedStream()
    first.launch()
    second.wait(first.record())
    second.launch()
    second.synchronize()
    assert first.completed == 1 and second.completed == 1


def test_large_arrays_live_on_blocks_that_die_with_the_last_view():
    before = gt.memory.stats().allocated
    x = gt.empty((1 << 20,))
    view = x[10:].reshape(-1, 2) if (x.size - 10) % 2 == 0 else x[10:]
    assert gt.memory.stats().allocated - before == x.nbytes
    del x
    assert gt.memory.stats().allocated - before == 4 << 20
    del view
    assert gt.memory.stats().allocated == before


def test_bfloat16_arrays_live_on_blocks_too():
    before = gt.memory.stats().allocated
    x = gt.full((1 << 19,), 1.5, gt.bfloat16)
    assert gt.memory.stats().allocated - before == 1 << 20
    assert x.dtype == gt.bfloat16 and np.asarray(x.array, np.float32).max() == 1.5
