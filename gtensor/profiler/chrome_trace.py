"""A profile in Chrome's trace format, which https://ui.perfetto.dev and chrome://tracing open.

Threads of the host and streams of GPUs are tracks; live bytes are counters; arrows lead from an op
to its backward rule. Format: "Trace Event Format", Google, 2016. Times are microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gtensor.profiler.spans import Recorded, Span

_HOST, _GPU = 1, 2  # process numbers: tracks are grouped by them
_dumps = json.JSONEncoder(separators=(",", ":")).encode


def trace(recorded: Recorded, path: str) -> bytes:
    """The bytes of the file; compressed if the name ends in .gz."""
    text = '{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(_events(recorded)) + "\n]}\n"
    return gzip.compress(text.encode(), 5) if Path(path).suffix == ".gz" else text.encode()


def _events(recorded: Recorded) -> Iterator[str]:
    spans = recorded.spans
    device = str(recorded.machine.get("device", "GPU"))
    yield from _names(spans, device)
    quoted = _Quoted()
    for at, span in enumerate(spans):
        name = quoted[f"{span.name} {span.phase}".strip()]
        more = (f'"cat":"{span.kind}","args":{{"module":{quoted[span.module]},'
                f'"line":{quoted[span.source]}')
        if span.kind == "op":
            more += (f',"read":{span.read},"written":{span.written},"flops":{span.flops},'
                     f'"launches":{span.launches},"blocks":{span.allocations}')
        more += "}}"
        yield _complete(_HOST, span.thread, span.start, span.seconds, name, more)
        if span.device_start is not None and span.device_seconds is not None:
            yield _complete(_GPU, span.stream or 0, span.device_start, span.device_seconds, name,
                            more)
        if span.link is not None:
            forward = spans[span.link]
            yield _arrow("s", at, forward)
            yield _arrow("f", at, span)
    for seconds, where, live in recorded.live:
        yield _dumps({"ph": "C", "pid": _HOST, "name": f"live bytes on {where}",
                      "ts": round(seconds * 1e6, 3), "args": {"bytes": live}})


def _complete(process: int, track: int, start: float, seconds: float, name: str,
              more: str) -> str:
    return (f'{{"ph":"X","pid":{process},"tid":{track},"ts":{start * 1e6:.3f},'
            f'"dur":{seconds * 1e6:.3f},"name":{name},{more}')


def _arrow(kind: str, number: int, span: Span) -> str:
    """An end of an arrow; the point lies in the middle of its op, to which it is bound."""
    at = (span.start + span.seconds / 2) * 1e6
    bound = ',"bp":"e"' if kind == "f" else ""
    return (f'{{"ph":"{kind}","pid":{_HOST},"tid":{span.thread},"ts":{at:.3f},"id":{number},'
            f'"name":"gradient","cat":"gradient"{bound}}}')


def _names(spans: Sequence[Span], device: str) -> Iterator[str]:
    """The names of processes and tracks."""
    def meta(process: int, what: str, name: str, track: int = 0) -> str:
        return _dumps({"ph": "M", "pid": process, "tid": track, "name": what,
                       "args": {"name": name}})

    yield meta(_HOST, "process_name", "host")
    for thread in sorted({span.thread for span in spans}):
        yield meta(_HOST, "thread_name", "profiled thread" if thread == 0 else f"thread {thread}",
                   thread)
    streams = sorted({span.stream for span in spans if span.stream is not None})
    if streams:
        yield meta(_GPU, "process_name", device)
    for stream in streams:
        yield meta(_GPU, "thread_name", f"stream {stream}", stream)


class _Quoted(dict[str, Any]):
    """A text as JSON; few texts occur many times."""

    def __missing__(self, text: str) -> str:
        self[text] = quoted = _dumps(text)
        return quoted
