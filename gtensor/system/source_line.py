"""The user's line: the innermost frame that is not gtensor's own. NumPy's warnings name it."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import warnings
from types import CodeType, FrameType
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RECIPES = os.path.join(_PACKAGE, "train") + os.sep  # programs that use gtensor, as a user's do


class _Inside(dict[str, bool]):
    """File name -> is it gtensor's own, or that of a `with` block which it enters."""

    def __missing__(self, name: str) -> bool:
        self[name] = own = name == contextlib.__file__ or name.startswith("<formula ") or (
            name.startswith(_PACKAGE) and not name.startswith(_RECIPES))
        return own


class _Last:
    """The code of the last op's caller outside gtensor; the next op's is most often the same."""

    code: CodeType | None = None


inside = _Inside()
last = _Last()


def user_frame(frame: FrameType) -> FrameType:
    """The innermost frame outside gtensor, from `frame` outwards (the outermost if none is)."""
    while True:
        if not inside[frame.f_code.co_filename] or frame.f_back is None:
            return frame
        frame = frame.f_back


def line_of(code: CodeType, lasti: int) -> int:
    """The line of an instruction, 0 if it has none."""
    return next((n for start, end, n in code.co_lines() if start <= lasti < end and n), 0)


def place(code: CodeType, lasti: int) -> str:
    """`file:line: source` of an instruction."""
    line = line_of(code, lasti)
    text = linecache.getline(code.co_filename, line).strip() if line else ""
    return f"{code.co_filename}:{line or None}" + (f": {text}" if text else "")


class _InsideGtensor:
    """The `message` of a warning filter: matches NumPy's warning of values (0 divided by 0) that a
    path of gtensor's caused, after it has warned of it at the user's line.

    NumPy warns at the innermost Python frame. A filter is asked while that frame runs, which costs
    nothing where nothing is warned of.

    Libraries that pass filters on, to other processes, too, read a regular expression: for them it
    is one that matches nothing.
    """

    pattern = "(?!)"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return re.compile, (self.pattern,)

    def match(self, text: str) -> bool:
        if " encountered in " not in text:
            return False
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith("numpy.") and frame.f_back is not None:
            frame = frame.f_back
        if not inside[frame.f_code.co_filename] or frame.f_code is sys._getframe().f_code:
            return False
        user = user_frame(frame)
        warnings.warn_explicit(
            text, RuntimeWarning, user.f_code.co_filename, user.f_lineno,
            user.f_globals.get("__name__"), user.f_globals.setdefault("__warningregistry__", {}))
        return True


def _warn_at_users_line() -> None:
    """Ask the filter before those that there are now."""
    warnings.filterwarnings("ignore", "gtensor", RuntimeWarning)
    action, _, *rest = warnings.filters[0]
    warnings.filters[0] = action, _InsideGtensor(), *rest  # type: ignore[index]


_warn_at_users_line()
