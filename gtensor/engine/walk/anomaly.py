"""Anomaly detection: a listener that looks for NaN in every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from gtensor.engine.handle.errors import AnomalyError
from gtensor.system.bus import GradientEvent, listen

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


class NanFinder:
    """Raises AnomalyError at the first NaN in a gradient of the thread that made it."""

    def __init__(self) -> None:
        self.thread = get_ident()

    def gradient_written(self, event: GradientEvent) -> None:
        """Refuse NaN."""
        if get_ident() == self.thread and (
                event.node.device.path("detect_anomaly", _has_nan)(event.array)):
            raise AnomalyError(
                f"NaN in the gradient that {event.record.where()} gives to its input"
                if event.record is not None
                else "NaN in the gradient that backward() or grad() was given")


def _has_nan(array: Array) -> bool:
    return bool((array != array).any())


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Check every gradient of a backward of this thread in the block for NaN.

    The first one raises `AnomalyError`, which names the op and the line of the forward pass. Every
    gradient is read once more (which waits for the GPU), so it is for debugging only.
    """
    with listen(NanFinder()):
        yield
