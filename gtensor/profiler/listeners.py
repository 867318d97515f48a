"""The listeners themselves. Ops nest, so each keeps what it has open, per thread."""

from __future__ import annotations

import sys
import zlib
from functools import partial
from time import perf_counter
from typing import Any, TextIO
from weakref import ref

import numpy as np

from gtensor.backend import device_of
from gtensor.engine.handle.errors import GradientError
from gtensor.profiler.open_events import Open
from gtensor.system.bus import BatchEvent, OpEvent, Registered, bus


class _Timed:
    """A listener that takes the time of ops."""

    def __init__(self) -> None:
        self._open: Open[float] = Open()

    def op_begins(self, event: OpEvent) -> None:
        """Note the time."""
        self._open.push(event, perf_counter())

    def op_ends(self, event: OpEvent) -> None:
        """Hand on the time since."""
        now = perf_counter()
        for start in self._open.taken(event):
            self._took(event, now - start)

    def _took(self, event: OpEvent, seconds: float) -> None:
        """What becomes of the time."""
        raise NotImplementedError


class Printer(_Timed):
    """A line per op on stderr: its time on the host, the bytes of its arrays, its module.

    Args:
        source: with the user's line.
        out: where to write, by default `sys.stderr`.
    """

    def __init__(self, source: bool = False, out: TextIO | None = None) -> None:
        super().__init__()
        self.source = source
        self.out = out

    def _took(self, event: OpEvent, seconds: float) -> None:
        failed = "" if event.error is None else f" raised {type(event.error).__name__}"
        source = "  " + event.source() if self.source else ""
        print(f"gtensor: {1e6 * seconds:10.1f} us {event.nbytes:>14,} bytes  "
              f"{event.name} {event.phase}{failed}  {event.module}{source}".rstrip(),
              file=self.out or sys.stderr)

    def fetched(self, event: BatchEvent) -> None:
        """Print how long the loop waited for a batch."""
        print(f"gtensor: {1e6 * event.seconds:10.1f} us for batch {event.number} of epoch "
              f"{event.epoch}", file=self.out or sys.stderr)


class SavedArrays:
    """Refuses saved arrays that were written from outside of gtensor, by their checksums.

    The arrays that an op has read or made are checksummed at its end, and again where a rule reads
    them. That copies every array of a GPU to the host.
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[ref[Any], int]] = {}  # by the id of the array

    def op_begins(self, event: OpEvent) -> None:
        """Compare what the record saved."""
        if event.phase != "backward":
            return
        _, step, _ = event.args
        for array in step.saved:
            found, known = self._sums.get(id(array), (None, 0))
            if found is not None and found() is array and _checksum(array) != known:
                raise GradientError(
                    f"an array that {step.record.where()} saved for its gradient was written from "
                    "outside of gtensor since; wanted it unchanged until backward")

    def op_ends(self, event: OpEvent) -> None:
        """Checksum the arrays of a path."""
        if event.phase == "backward" or event.error is not None:
            return
        made = event.result if isinstance(event.result, tuple) else (event.result,)
        for array in (*event.arrays, *made):
            if hasattr(array, "shape") and not isinstance(array, np.generic):
                known = ref(array, partial(self._forget, id(array)))
                self._sums[id(array)] = known, _checksum(array)

    def _forget(self, key: int, gone: ref[Any]) -> None:
        if self._sums.get(key, (None, 0))[0] is gone:
            del self._sums[key]


def start(level: int) -> None:
    """Register the listeners of `GTENSOR_DEBUG=level` for the rest of the program."""
    if level >= 2:
        bus.add(Registered(Printer(source=level >= 4)))
    if level >= 3:
        bus.add(Registered(SavedArrays()))


def _checksum(array: Any) -> int:
    return zlib.crc32(device_of(array).to_numpy(array).tobytes())
