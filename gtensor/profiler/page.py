"""A profile as an HTML page: ops and live memory over time, and a table.

The file is self-contained: it loads no script or font. Spans are columns of numbers in base64,
which a browser reads in a few milliseconds; a text is its number in one list.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.profiler.table import own_times
from gtensor.system.pages import page

if TYPE_CHECKING:
    from gtensor.profiler.spans import Recorded

_TEXTS = ("name", "phase", "module", "source")
_SECONDS = ("start", "seconds", "device_start", "device_seconds")
_PLACES = ("thread", "link", "parent")
_AMOUNTS = ("launches", "read", "written", "flops", "allocations", "allocated")


def html_file(recorded: Recorded) -> bytes:
    """The bytes of a `.html` file."""
    return page("gtensor.profiler", "profile_page", _data(recorded))


def _data(recorded: Recorded) -> dict[str, Any]:
    spans = recorded.spans
    texts: dict[str, int] = {}
    kinds: dict[str, int] = {}
    streams = sorted({span.stream for span in spans if span.stream is not None})
    number = {stream: n for n, stream in enumerate(streams)}
    columns = {name: _column([texts.setdefault(getattr(span, name), len(texts)) for span in spans],
                             np.int32) for name in _TEXTS}
    for name in _SECONDS:  # -1 is None
        columns[name] = _column([_or_less(getattr(span, name)) for span in spans], np.float64)
    for name in _PLACES:
        columns[name] = _column([_or_less(getattr(span, name)) for span in spans], np.int32)
    for name in _AMOUNTS:
        columns[name] = _column([getattr(span, name) for span in spans], np.float64)
    columns["kind"] = _column([kinds.setdefault(span.kind, len(kinds)) for span in spans], np.int32)
    columns["stream"] = _column([-1 if span.stream is None else number[span.stream]
                                 for span in spans], np.int32)
    columns["own"] = _column(
        [host if span.device_seconds is None else device
         for span, (host, device) in zip(spans, own_times(spans), strict=True)], np.float64)
    columns["live_time"] = _column([time for time, _, _ in recorded.live], np.float64)
    columns["live"] = _column([live for _, _, live in recorded.live], np.float64)
    return {"columns": columns, "texts": [*texts], "kinds": [*kinds], "streams": streams,
            "seconds": recorded.seconds, "machine": recorded.machine,
            "ceilings": recorded.machine.get("ceilings", {})}


def _or_less(value: float | None) -> float:
    return -1 if value is None else value


def _column(values: Iterable[float], dtype: Any) -> str:
    return b64encode(np.asarray([*values], dtype).tobytes()).decode()
