"""The range of steps that nsys captures: opened by the program itself, in `gtensor profile --nsys`.

nsys is started with `--capture-range=nvtx --nvtx-capture=steps@gtensor` and records from the begin
of that range to its end. The range is one of NVTX's start/end ranges: it lies in no stack, so the
program's own ranges may begin and end across it, in any thread.
"""

from __future__ import annotations

import sys

from gtensor.backend import nvtx
from gtensor.backend.devices import cuda_devices
from gtensor.system.bus import PhaseEvent, Registered, bus

LABEL = "steps"


class Capture:
    """A listener that opens the range after some optimizer steps, and closes it after some more.

    At both ends it waits for the GPUs, so that what is recorded is the work of these steps.
    """

    def __init__(self, after: int, steps: int) -> None:
        self._first, self._last = after, after + steps
        self._made = 0
        self._range = 0
        self.registered = Registered(self)

    def phase_ends(self, event: PhaseEvent) -> None:
        """Count a step."""
        if event.name != "update" or event.error is not None:
            return
        self._made += 1
        if self._made == self._first:
            _wait()
            self._range = nvtx.start("user", LABEL)
        elif self._made == self._last:
            _wait()
            nvtx.end(self._range)
            bus.remove(self.registered)


def start(after: int, steps: int) -> None:
    """Listen for the rest of the program. Raises ValueError for numbers below 1."""
    if min(after, steps) < 1:
        raise ValueError(f"GTENSOR_CAPTURE_AFTER={after} and GTENSOR_CAPTURE_STEPS={steps} given; "
                         "wanted numbers of optimizer steps, 1 or more")
    if nvtx.attached():
        bus.add(Capture(after, steps).registered)
    else:
        print("gtensor: no range of steps will be captured: no profiler takes NVTX ranges",
              file=sys.stderr)


def _wait() -> None:
    for device in [*cuda_devices.values()]:
        if not device.capturing():
            device.synchronize()
