"""NVTX ranges in gtensor's own domain, for profilers such as Nsight Systems.

    push("forward", "matmul", payload=nbytes); ...; pop()

Labels are registered strings, and attributes are prepared once per label and thread. A profiler is
attached when it is loaded at the first call of NVTX, as nsys does. Without one, without the nvtx
package, or with a non-empty NVTX_DISABLE (NVTX's own variable; "0" disables too, and the package
ignores it for domains), `attached()` is False; a caller asks it before it listens to anything.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any

DOMAIN = "gtensor"
CATEGORIES = {  # and their colors, as 0xRRGGBB
    "forward": 0x4C84C4, "backward": 0xDD8A3A, "optimizer": 0x4AA577, "memory": 0xC0504D,
    "data": 0x8E6BB5, "communication": 0x2AA6A6, "graph": 0x8A8F98, "user": 0xD4B23C,
}
MOST_DETAILS = 4096  # NVTX keeps registered strings until the process ends
MOST_LABELS = 16384  # of all kinds, per thread
_MORE = "(a label beyond the number that is kept)"


class _Prepared(threading.local):
    """Attributes by category, label and detail, of this thread: their payload is set at a push."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], Any] = {}
        self.details = 0


_prepared = _Prepared()


@cache
def _domain() -> Any:
    """NVTX's domain, or None without a profiler; the first call makes NVTX load its library."""
    if os.environ.get("NVTX_DISABLE"):
        return None
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN)
    return None if type(domain).__name__ == "DummyDomain" else domain


def attached() -> bool:
    """Whether a profiler sees ranges."""
    return _domain() is not None


def push(category: str, label: str, payload: float | None = None, detail: str = "") -> None:
    """Open a range on this thread; ranges nest, and each needs a `pop`.

    Args:
        category: one of CATEGORIES.
        label: its text.
        payload: a number shown with it.
        detail: more text, such as shapes; left out after MOST_DETAILS different texts.
    """
    attributes = _prepared.found.get((category, label, detail))
    if attributes is None:
        if len(_prepared.found) >= MOST_LABELS:
            label, detail = _MORE, ""
        attributes = _prepare(category, label, detail)
    attributes.payload = payload
    _domain().push_range(attributes)


def pop() -> None:
    """Close the range that this thread opened last."""
    _domain().pop_range()


def start(category: str, label: str) -> int:
    """Open a range that any thread may `end`, and that does not nest with others."""
    opened: int = _domain().start_range(_prepare(category, label, ""))
    return opened


def end(opened: int) -> None:
    """Close a range that `start` opened."""
    _domain().end_range(opened)


def _prepare(category: str, label: str, detail: str) -> Any:
    if detail:
        if _prepared.details >= MOST_DETAILS:
            return _prepared.found.get((category, label, "")) or _prepare(category, label, "")
        _prepared.details += 1
    domain = _domain()
    message = f"{label} {detail}" if detail else label
    attributes = domain.get_event_attributes(
        message=message.encode(errors="replace").decode(), color=CATEGORIES[category],
        category=domain.get_category_id(category))
    _prepared.found[category, label, detail] = attributes
    return attributes
