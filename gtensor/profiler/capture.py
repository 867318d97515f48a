"""The range of steps that nsys captures: opened by the program itself, in `gtensor profile --nsys`.

nsys is started with `--capture-range=nvtx --nvtx-capture=steps@gtensor` and records from the begin
of that range to its end. The range is one of NVTX's start/end ranges: it lies in no stack, so the
program's own ranges may begin and end across it, in any thread.
"""

from __future__ import annotations

import sys

from gtensor.backend import nvtx
from gtensor.backend.devices import cuda_devices
from gtensor.profiler.steps import Steps
from gtensor.system.bus import Registered, bus

LABEL = "steps"


def start(first: int, count: int) -> None:
    """Open the range after the first optimizer steps, and close it after so many more.

    At both ends the GPUs are waited for, so that what is recorded is the work of these steps.
    Raises ValueError as `Steps`.
    """
    opened: list[int] = []

    def begin() -> None:
        _wait()
        opened.append(nvtx.start("user", LABEL))

    def end() -> None:
        _wait()
        nvtx.end(opened.pop())
        bus.remove(registered)

    if nvtx.attached():
        registered = Registered(Steps((first, count), begin, end))
        bus.add(registered)
    else:
        print("gtensor: no range of steps will be captured: no profiler takes NVTX ranges",
              file=sys.stderr)


def _wait() -> None:
    for device in [*cuda_devices.values()]:
        if not device.capturing():
            device.synchronize()
