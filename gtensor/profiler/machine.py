"""The machine of a profile, and its ceilings: how fast bytes move, how fast matrices multiply."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend.timing import launches, mark, seconds_between
from gtensor.system.files import PIECE_BYTES, opened

if TYPE_CHECKING:
    from gtensor.backend import Device

_TRIALS = 5  # of which the fastest counts
_ON_CPU = 1 << 25, 768  # bytes of a copy, beyond most caches; rows of a product
_ON_GPU = 1 << 28, 4096  # beyond the caches of an H200


def machine(device: Device) -> dict[str, Any]:
    """What a profile says of the device that it ran on, of plain JSON types.

    "ceilings" has "bytes_per_second" of a copy (read and written) and "flops_per_second" of a
    float32 matrix product, measured at the first call: a quarter of a second on the CPU. Nothing
    where the device has no memory left for it.
    """
    try:
        copied, multiplied = ceilings(device)
    except MemoryError:
        measured = {}
    else:
        measured = {"bytes_per_second": copied, "flops_per_second": multiplied}
    name = device.describe()[0] if device.type == "cuda" else processor()
    return {"device": str(device), "name": name, "system": platform.platform(),
            "python": platform.python_version(), "numpy": np.__version__,
            "ceilings": measured}


def processor() -> str:
    """The model of this machine's processor, its architecture where the system does not say."""
    try:
        with opened("/proc/cpuinfo") as descriptor:
            text = os.pread(descriptor, PIECE_BYTES, 0).decode(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


@cache
def ceilings(device: Device) -> tuple[float, float]:
    """Bytes per second of a copy, operations per second of a product; measured once."""
    xp = device.xp
    nbytes, n = _ON_GPU if device.type == "cuda" and launches() is int else _ON_CPU
    source, target = xp.ones(nbytes, np.uint8), xp.zeros(nbytes, np.uint8)
    a, out = xp.ones((n, n), np.float32), xp.zeros((n, n), np.float32)
    return (2 * nbytes / _fastest(device, lambda: xp.copyto(target, source)),
            2 * n**3 / _fastest(device, lambda: xp.matmul(a, a, out=out)))


def _fastest(device: Device, work: Any) -> float:
    """The shortest of a few runs, in seconds on the device."""
    work()
    times = []
    for _ in range(_TRIALS):
        if device.type == "cpu":
            begin = perf_counter()
            work()
            times.append(perf_counter() - begin)
        else:
            _, first = mark(device)
            work()
            times.append(seconds_between(first, mark(device)[1]))
    return max(min(times), 1e-9)
