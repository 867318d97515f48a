"""Checks of untrusted documents and states: every value has the required type and range."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from gtensor.system.files import MOST_TEXT_BYTES, printable

MOST_ADDRESS = 2**64 - 1
MOST_NUMBER = 2**53  # of bytes, events and steps: as far as floats count exactly
MOST_SECONDS = 1e9  # 30 years, of a recording
_MOST_PARTS = 1024  # of an option that is an array
_LACKING: Any = object()
UNLOADED = "; nothing was loaded"


class Facts:
    """A dict whose values are read with a required type; `what` names it in errors.

    Raises ValueError, which names the dict and the key, for another value.
    """

    def __init__(self, what: str, found: object, end: str = "") -> None:
        self.what = what
        self.end = end  # of the sentences
        if not isinstance(found, Mapping):
            raise ValueError(f"{what} is {told(found)}, wanted a dict{end}")
        self.found = found

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def _value(self, key: str, default: object) -> Any:
        value = self.found.get(key, default)
        if value is _LACKING:
            raise ValueError(f"{self.what} lacks {key!r}{self.end}")
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> ValueError:
        return ValueError(f"{key!r} of {self.what} is {told(value)}, wanted {wanted}"
                          f"{self.end}")

    def whole(self, key: str, default: object = _LACKING, most: int = MOST_NUMBER) -> int:
        """A whole number from 0 on."""
        value = self._value(key, default)
        if type(value) is not int or not 0 <= value <= most:
            raise self._wrong(key, value, f"a whole number from 0 to {most}")
        return value

    def integer(self, key: str) -> int:
        """A whole number of either sign."""
        value = self._value(key, _LACKING)
        if type(value) is not int or abs(value) > MOST_ADDRESS:
            raise self._wrong(key, value, "a whole number")
        return value

    def count(self, key: str, default: object = _LACKING) -> int:
        """A whole number from 0 on, which PyTorch may have as a float or a tensor of one."""
        value = self._value(key, default)
        if getattr(value, "shape", None) == ():
            value = value.item()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return Facts(self.what, {key: value}, self.end).whole(key)

    def like(self, key: str, example: object) -> Any:
        """A flag, a number, or as many numbers as the example is; beside another, anything."""
        value = self._value(key, _LACKING)
        found = plain(value)
        if isinstance(example, bool):
            if type(found) not in (bool, int) or found not in (0, 1):
                raise self._wrong(key, value, "True or False")
            return bool(found)
        if isinstance(example, tuple) and all(map(is_number, example)):
            if not isinstance(found, tuple) or len(found) != len(example) or not all(
                    map(is_number, found)):
                raise self._wrong(key, value, f"{len(example)} numbers")
        elif is_number(example) and not is_number(found):
            raise self._wrong(key, value, "a number")
        return found

    def rates(self, key: str, default: object) -> list[float]:
        """A list of numbers, none of which is NaN."""
        value = self._value(key, default)
        found = plain(value)
        if not isinstance(found, tuple) or not all(is_number(n) and n == n for n in found):
            raise self._wrong(key, value, "a list of numbers")
        return list(found)

    def event(self, key: str) -> int | None:
        """The number of an event, or None."""
        return None if self._value(key, _LACKING) is None else self.whole(key)

    def address(self, key: str, default: object = _LACKING) -> int:
        """A place in memory."""
        return self.whole(key, default, MOST_ADDRESS)

    def seconds(self, key: str) -> float:
        """A moment."""
        return seconds(self._value(key, _LACKING), f"{key!r} of {self.what}")

    def flag(self, key: str) -> bool:
        """True or False."""
        value = self._value(key, _LACKING)
        if type(value) is not bool:
            raise self._wrong(key, value, "True or False")
        return value

    def text(self, key: str, default: object = _LACKING) -> str:
        """A text that can be shown."""
        value = self._value(key, default)
        if type(value) is not str or len(value) > MOST_TEXT_BYTES:
            raise self._wrong(key, value, f"a text of at most {MOST_TEXT_BYTES} letters")
        return printable(value)

    def many(self, key: str, default: object = _LACKING) -> Sequence[Any]:
        """A list, or a tuple: itself."""
        value = self._value(key, default)
        if type(value) not in (list, tuple):
            raise self._wrong(key, value, "a list")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, as they are."""
        found = self.many(key)
        if not all(type(text) is str for text in found):
            raise self._wrong(key, found, "a list of texts")
        return tuple(found)

    def within(self, key: str) -> Facts:
        """The facts of a dict."""
        return Facts(f"{key!r} of {self.what}", self._value(key, _LACKING), self.end)

    def inner(self, key: str) -> Mapping[Any, Any]:
        """A dict."""
        return self.within(key).found

    def each(self, key: str, what: str) -> list[Facts]:
        """A list of dicts."""
        return [Facts(what, found, self.end) for found in self.many(key)]

    def numbers(self, key: str) -> dict[str, Any]:
        """A dict of numbers (or None) by name."""
        found = self.inner(key)
        for value in found.values():
            if type(value) not in (int, float, bool, type(None)):
                raise self._wrong(key, value, "numbers by name")
        return {printable(str(name)): value for name, value in found.items()}


def seconds(value: Any, what: str) -> float:
    """A moment, from the start. Raises ValueError naming `what` it is, for any other value."""
    if type(value) not in (int, float) or not abs(value) <= MOST_SECONDS:  # NaN is no number
        raise ValueError(f"{what} is {told(value)}, wanted seconds from the start")
    return float(value)


def plain(value: Any) -> Any:
    """An option as Python has it: lists and short 1-d arrays as tuples, 0-d ones as numbers."""
    if isinstance(value, (list, tuple)):
        return tuple(_unwrapped(item) for item in value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape) == 1 and shape[0] <= _MOST_PARTS:
        return tuple(value.tolist())
    return _unwrapped(value)


def _unwrapped(value: Any) -> Any:
    """The number in a 0-d array or tensor; any other value unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


def is_number(value: object) -> bool:
    """Whether it is a number that a float can be; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:  # an integer
        return False
    return True


def told(value: object) -> str:
    """A value in an error: itself if it is short and plain, else what it is."""
    if isinstance(value, int) and abs(value) > MOST_ADDRESS:
        # Python refuses to write one of more than 4300 digits
        return f"an integer of {value.bit_length()} bits"
    return (reprlib.repr(value) if value is None or isinstance(value, (int, float, str))
            else f"a {type(value).__name__}")
