"""NVTX ranges in a domain of our own, for profilers such as Nsight Systems.

    push("matmul"); ...; pop()

A range costs one call with attributes that are prepared once per label. Without the nvtx package,
with no profiler attached, or switched off, `push` and `pop` do nothing, and `enabled()` says so: a
hot loop asks it once and skips the calls.

`settings.nvtx` (GTENSOR_NVTX) decides: 0 never, -1 when a profiler is attached, 1 whenever the nvtx
package is there (without a profiler its dummy is called: that measures the cost). Change it between
ranges, not inside one. A non-empty NVTX_DISABLE (NVTX's own variable; "0" disables too) stops the
ranges whatever the setting: the nvtx package heeds it in its module functions only, not in the
domains that we use.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from gtensor.settings import settings

DOMAIN = "gtensor"

_attributes: dict[str, Any] = {}


@cache
def _domain() -> Any:
    """NVTX's domain, or None; NVTX loads the profiler's library at this first use, once."""
    if os.environ.get("NVTX_DISABLE"):
        return None
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx.get_domain(DOMAIN)


@cache
def _attached() -> bool:
    """Whether a profiler listens: without one, nvtx hands out a dummy domain."""
    domain = _domain()
    return domain is not None and type(domain).__name__ != "DummyDomain"


def enabled() -> bool:
    """Whether `push` and `pop` emit ranges now."""
    wanted = settings.nvtx
    if wanted == 0:
        return False
    return _attached() or (wanted > 0 and _domain() is not None)


def push(label: str) -> None:
    """Open a range named `label` on this thread; ranges nest. Every one wants its `pop`."""
    if not enabled():
        return
    domain = _domain()
    attributes = _attributes.get(label)
    if attributes is None:
        attributes = _attributes[label] = domain.get_event_attributes(message=label)
    domain.push_range(attributes)


def pop() -> None:
    """Close the range that this thread opened last."""
    if enabled():
        _domain().pop_range()
