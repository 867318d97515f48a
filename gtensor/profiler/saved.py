"""Profiles as files: JSON with a column per field, texts by number."""

from __future__ import annotations

import json
from os import PathLike
from typing import Any

from gtensor.profiler.spans import ProfileError, Recorded, Span
from gtensor.system.files import MOST_SNAPSHOT_BYTES, MOST_TEXT_BYTES, read_all

_FORMAT = "gtensor profile 1"
_TEXTS = ("name", "kind", "phase", "module", "source")
_FLOATS = ("start", "seconds", "device_start", "device_seconds")
_OPTIONAL = ("stream", "device_start", "device_seconds", "link", "parent")
_KINDS = {"op", "phase", "module", "range", "data", "communication", "graph"}
_MOST = 1 << 53  # integers that a page's numbers hold exactly
_MOST_PLACES = (1 << 31) - 1  # of threads


def json_file(recorded: Recorded) -> bytes:
    """The bytes of the file."""
    texts: dict[str, int] = {}
    columns: dict[str, list[Any]] = {}
    for name in Span._fields:
        values = [getattr(span, name) for span in recorded.spans]
        columns[name] = ([texts.setdefault(value, len(texts)) for value in values]
                         if name in _TEXTS else values)
    return json.dumps({
        "format": _FORMAT, "seconds": recorded.seconds, "machine": recorded.machine,
        "texts": [*texts], "spans": columns, "live": recorded.live}, separators=(",", ":")).encode()


def read(path: str | PathLike[str]) -> Recorded:
    """The profile of a file. Raises ProfileError if it is none, OSError if it cannot be read."""
    try:
        found = json.loads(read_all(path, MOST_SNAPSHOT_BYTES), parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is no profile, or a truncated one: {error}; wanted a file of "
                           "Profile.save()") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ProfileError(f"{path} is no profile of this version; wanted a file of Profile.save()")
    try:
        return _recorded(found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise ProfileError(f"the profile {path} is damaged ({type(error).__name__}: {error}); "
                           "wanted a file as Profile.save() wrote it") from None


def _recorded(found: dict[str, Any]) -> Recorded:
    texts = [_text(text) for text in found["texts"]]
    columns = []
    for name in Span._fields:
        values = found["spans"][name]
        if name in _TEXTS:
            columns.append([texts[_number(value, name)] for value in values])
        else:
            columns.append([_number(value, name) for value in values])
    spans = [Span(*row) for row in zip(*columns, strict=True)]
    for at, span in enumerate(spans):
        if not all(place is None or 0 <= place < at for place in (span.parent, span.link)):
            raise ValueError(f"span {at} refers to one that does not precede it")
        if span.kind not in _KINDS or not 0 <= span.thread <= _MOST_PLACES:
            raise ValueError(f"span {at} is of kind {span.kind!r} in thread {span.thread}")
    live = [(_number(time, "start"), _text(device), _number(total, "allocated"))
            for time, device, total in found["live"]]
    return Recorded(spans, live, _number(found["seconds"], "seconds"), _machine(found["machine"]))


def _machine(found: dict[str, Any]) -> dict[str, Any]:
    """The facts as texts, and the ceilings as numbers above 0."""
    ceilings = {str(name): _number(value, "seconds") for name, value in found["ceilings"].items()}
    if not all(value > 0 for value in ceilings.values()):
        raise ValueError(f"ceilings {ceilings}")
    return {**{_text(name): _text(value) for name, value in found.items()}, "ceilings": ceilings}


def _text(found: object) -> str:
    text = str(found)
    if len(text) > MOST_TEXT_BYTES:
        raise ValueError(f"a text of {len(text)} letters, wanted at most {MOST_TEXT_BYTES}")
    return text


def _refused(constant: str) -> None:
    raise ValueError(f"it has the number {constant}")


def _number(value: Any, name: str) -> Any:
    """The value, of the type of its field."""
    if value is None and name in _OPTIONAL:
        return None
    kinds = (int, float) if name in _FLOATS else (int,)
    if type(value) not in kinds or name in _TEXTS and value < 0:
        raise TypeError(f"{value!r} given for {name}")
    if abs(value) > _MOST:
        raise ValueError(f"a number beyond 2^53 given for {name}")
    return float(value) if name in _FLOATS else value
