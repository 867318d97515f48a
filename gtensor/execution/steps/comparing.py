"""Whether two recordings are the same program; if not, what differs first, in words."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.execution.steps.recorder import Call, Facts, Recorder, Stored, Value, Written
from gtensor.system.source_line import place

if TYPE_CHECKING:
    from gtensor.execution.steps.results import Results


_UNEVEN = ("a gradient was stored in an empty `.grad` in one call and added to one in the other; "
           "call zero_grad() within the step, before backward()")


def difference(
    first: Recorder, second: Recorder, results: tuple[Results, Results]
) -> str | None:
    """Why a program of the first recording would not do what the second did; None if it would."""
    for one, other in zip_longest(first.calls, second.calls):
        if one is None or other is None:
            call = one or other
            where, which = place(*call.where), ("only once", "the second time only")[one is None]
            return f"{named(call)} ran {which} ({where})"
        found = _between(one, other)
        if found:
            return f"{found} ({place(*other.where)})"
    for number, (one, other) in enumerate(zip(first.values, second.values, strict=True)):
        if one.kind != other.kind or one.shape != other.shape or one.dtype != other.dtype:
            return (f"a value of shape {one.shape} and dtype {one.dtype} was one of shape "
                    f"{other.shape} and dtype {other.dtype} the second time "
                    f"({place(*other.where)})")
        if one.kind == "external" and _another(one, other) and (
                other.root is not None and other.root.gradient):
            return (f"{_reader(second, number)} read or added to a .grad of before the step, which "
                    "is another one in each call; call zero_grad() within the step, before "
                    f"backward(), without set_to_none=False ({place(*other.where)})")
        if one.kind == "external" and _another(one, other):
            return (f"{_reader(second, number)} read an array of shape {other.shape} that is "
                    "another one in each call: data that was made inside without gtensor, or a "
                    "tensor of the call before; pass it as an argument, make it before, or write "
                    f"it in place ({place(*other.where)})")
    return results[0].difference(results[1])


def _another(one: Facts, other: Facts) -> bool:
    """Whether two external arrays are not one that lives."""
    assert one.array is not None and other.array is not None
    array = one.array()
    return array is None or array is not other.array()


def named(call: Call | Written | Stored | type[Stored]) -> str:
    if isinstance(call, Call):
        return call.name
    return "the write of a tensor" if isinstance(call, Written) else "the storing of gradients"


def _reader(recording: Recorder, number: int) -> str:
    """The call that reads a value first."""
    for call in recording.calls:
        if isinstance(call, Call) and number in values_of((call.args, call.params)):
            return call.name
    return "the step"


def values_of(coded: Any) -> list[int]:
    """The numbers of all values within coded arguments."""
    if isinstance(coded, Value):
        return [coded.number]
    if isinstance(coded, (tuple, list)):
        return [n for item in coded for n in values_of(item)]
    if isinstance(coded, dict):
        return [n for item in coded.values() for n in values_of(item)]
    return []


def _between(one: Any, other: Any) -> str | None:
    """What differs between two entries; None if nothing does."""
    if type(one) is not type(other):
        if {named(one), named(other)} == {"gradient", named(Stored)}:
            return _UNEVEN
        return f"{named(one)} was {named(other)} the second time"
    if isinstance(one, Written):
        same = (one.argument, one.itself) == (other.argument, other.itself) and (
            one.argument is not None or one.storage is other.storage)
        return None if same else "another tensor was written the second time"
    if isinstance(one, Stored):
        if len(one.entries) != len(other.entries):
            return "the gradients of other leaves were stored the second time"
        for (a, number, none), (b, number2, none2) in zip(one.entries, other.entries, strict=True):
            inner = callable(a) and callable(b)  # weak references to leaves of the step itself
            if number != number2 or not (a is b or a == b or inner):
                return "other gradients were stored the second time"
            if none != none2:
                return _UNEVEN
        return None
    if one.name != other.name or not _equal(one.function, other.function):
        return f"{one.name} was {other.name} the second time"
    for label, a, b in (
            ("argument", one.args, other.args), ("parameter", one.params, other.params)):
        if not _equal(a, b):
            return f"{one.name} was given {_first(label, a, b)}"
    if one.made != other.made or one.asarray != other.asarray or one.device is not other.device:
        return f"{one.name} made other results the second time"
    return None


def _first(label: str, a: Any, b: Any) -> str:
    """The first argument that differs."""
    pairs = ([(f"{label} {i}", x, y) for i, (x, y) in enumerate(zip_longest(a, b))]
             if isinstance(a, tuple) else
             [(f"{label} {key!r}", a.get(key), b.get(key)) for key in {**a, **b}])
    for name, x, y in pairs:
        if not _equal(x, y):
            if isinstance(x, Value) and isinstance(y, Value):
                return f"another tensor as {name} the second time"
            return (f"{name} = {x!r}, and {y!r} the second time: a value of Python's that changes; "
                    "pass it as an argument, or as a tensor")
    return f"other {label}s the second time"


def _equal(a: Any, b: Any, above: tuple[tuple[Any, Any], ...] = ()) -> bool:
    """Whether two coded arguments are the same; `above`: functions that are being compared."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(
            _equal(x, y, above) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key], above) for key in a)
    if isinstance(a, float):
        return a == b and str(a) == str(b) or a != a and b != b  # 0.0 is not -0.0
    if isinstance(a, FunctionType):  # defined within a function that has run twice
        if any(a is x and b is y for x, y in above):  # it reads itself
            return True
        above = (*above, (a, b))
        return a.__code__ is b.__code__ and all(
            _equal(x, y, above) for x, y in zip(_read_by(a), _read_by(b), strict=True))
    if isinstance(a, partial):
        return all(_equal(x, y, above) for x, y in (
            (a.func, b.func), (a.args, b.args), (a.keywords, b.keywords)))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def _read_by(function: FunctionType) -> list[Any]:
    """What a function has beside its code: defaults, and what it reads of those around it."""
    cells = function.__closure__ or ()
    return [function.__defaults__, function.__kwdefaults__, *[c.cell_contents for c in cells]]
