"""Documents from anybody, as JSON and pickles give them: each fact is what it must be, or refused."""

from __future__ import annotations

import reprlib
from typing import Any

from gtensor.files import MOST_TEXT_BYTES, printable

MOST_ADDRESS = 2**64 - 1
MOST_NUMBER = 2**53  # of bytes and events: what the page's script counts exactly
MOST_SECONDS = 1e9  # 30 years, of a recording
_LACKING: Any = object()


class Facts:
    """A dict of the file, whose values are asked for as what they must be.

    Raises ValueError naming the dict and the key for any other.
    """

    def __init__(self, what: str, found: Any) -> None:
        if type(found) is not dict:
            raise ValueError(f"{what} is {_told(found)}, wanted a dict")
        self.what = what
        self.found = found

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def _value(self, key: str, default: Any) -> Any:
        value = self.found.get(key, default)
        if value is _LACKING:
            raise ValueError(f"{self.what} lacks {key!r}")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> ValueError:
        return ValueError(f"{key!r} of {self.what} is {_told(value)}, wanted {wanted}")

    def whole(self, key: str, default: Any = _LACKING, most: int = MOST_NUMBER) -> int:
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

    def event(self, key: str) -> int | None:
        """The number of an event, or None."""
        return None if self._value(key, _LACKING) is None else self.whole(key)

    def address(self, key: str, default: Any = _LACKING) -> int:
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

    def text(self, key: str, default: Any = _LACKING) -> str:
        """A text that can be shown."""
        value = self._value(key, default)
        if type(value) is not str or len(value) > MOST_TEXT_BYTES:
            raise self._wrong(key, value, f"a text of at most {MOST_TEXT_BYTES} letters")
        return printable(value)

    def list(self, key: str, default: Any = _LACKING) -> list[Any]:
        """A list."""
        value = self._value(key, default)
        if type(value) is not list:
            raise self._wrong(key, value, "a list")
        return value

    def each(self, key: str, what: str) -> list[Facts]:
        """A list of dicts."""
        return [Facts(what, found) for found in self.list(key)]

    def numbers(self, key: str) -> dict[str, Any]:
        """A dict of numbers (or None) by name."""
        found = Facts(f"{key!r} of {self.what}", self._value(key, _LACKING)).found
        for name, value in found.items():
            if type(value) not in (int, float, bool, type(None)):
                raise self._wrong(key, value, "numbers by name")
        return {printable(name): value for name, value in found.items()}


def seconds(value: Any, what: str) -> float:
    """A moment, from the start. Raises ValueError naming `what` it is, for any other value."""
    if type(value) not in (int, float) or not abs(value) <= MOST_SECONDS:  # NaN is no number
        raise ValueError(f"{what} is {_told(value)}, wanted seconds from the start")
    return float(value)


def _told(value: Any) -> str:
    """A value in an error: itself if it is short and plain."""
    return (reprlib.repr(value) if value is None or isinstance(value, (bool, int, float, str))
            else f"a {type(value).__name__}")
