"""NVTX ranges in a domain of our own, for profilers such as Nsight Systems.

    push("matmul"); ...; pop()

A range costs one call with attributes that are prepared once per label. Without the nvtx package, with no
profiler attached, or switched off, `push` and `pop` do nothing, and `enabled()` says so: a hot loop asks it
once and skips the calls.

`settings.nvtx` (GTENSOR_NVTX) decides: 0 never, -1 when a profiler is attached, 1 whenever the nvtx package
is there (without a profiler its dummy is called: that measures the cost). Change it between ranges, not
inside one. A non-empty
NVTX_DISABLE (NVTX's own variable; "0" disables too) stops the ranges whatever the setting: the nvtx package
heeds it in its module functions only, not in the domains that we use.
"""

from __future__ import annotations

import os
from typing import Any

from gtensor.settings import settings

DOMAIN = "gtensor"


class _Ranges:
    """The domain, looked up at the first use: NVTX loads the profiler's library then, once."""

    __slots__ = ("attached", "attributes", "domain", "known")

    def __init__(self) -> None:
        self.known = False
        self.attached = False
        self.domain: Any = None
        self.attributes: dict[str, Any] = {}

    def look_up(self) -> None:
        self.known = True
        if os.environ.get("NVTX_DISABLE"):
            return
        try:
            import nvtx
        except ImportError:
            return
        self.domain = nvtx.get_domain(DOMAIN)
        # Without a profiler nvtx hands out a dummy.
        self.attached = type(self.domain).__name__ != "DummyDomain"


_ranges = _Ranges()


def enabled() -> bool:
    """Whether `push` and `pop` emit ranges now."""
    if settings.nvtx == 0:
        return False
    if not _ranges.known:
        _ranges.look_up()
    return _ranges.attached or (settings.nvtx > 0 and _ranges.domain is not None)


def push(label: str) -> None:
    """Open a range named `label` on this thread; ranges nest. Every one wants its `pop`."""
    if not enabled():
        return
    attributes = _ranges.attributes.get(label)
    if attributes is None:
        attributes = _ranges.domain.get_event_attributes(message=label)
        _ranges.attributes[label] = attributes
    _ranges.domain.push_range(attributes)


def pop() -> None:
    """Close the range that this thread opened last."""
    if enabled():
        _ranges.domain.pop_range()
