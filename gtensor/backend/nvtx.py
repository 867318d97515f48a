"""NVTX ranges in gtensor's own domain, for profilers such as Nsight Systems.

    push("matmul"); ...; pop()

A range costs one call with attributes that are prepared once per label. Without the nvtx package,
without a profiler, or switched off, `push` and `pop` do nothing and `enabled()` is False; a hot
loop calls it once and skips the ranges.

`settings.nvtx` (GTENSOR_NVTX): 0 never, -1 when a profiler is attached, 1 whenever the nvtx package
is installed (without a profiler its dummy is called, to measure the cost). Change it between
ranges, not inside one. A non-empty NVTX_DISABLE (NVTX's own variable; "0" disables too) always
stops the ranges. It is read here because the nvtx package ignores it for domains.
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
    """NVTX's domain, or None; the first call makes NVTX load the profiler's library."""
    if os.environ.get("NVTX_DISABLE"):
        return None
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx.get_domain(DOMAIN)


@cache
def _attached() -> bool:
    """Whether a profiler is attached: without one, nvtx returns a dummy domain."""
    domain = _domain()
    return domain is not None and type(domain).__name__ != "DummyDomain"


def enabled() -> bool:
    """Whether `push` and `pop` emit ranges now."""
    wanted = settings.nvtx
    if wanted == 0:
        return False
    return _attached() or (wanted > 0 and _domain() is not None)


def push(label: str) -> None:
    """Open a range named `label` on this thread; ranges nest, and each needs a `pop`."""
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
