"""How a wrong call ended: the class of its outcome."""

from __future__ import annotations

import dis
import os
import re
from types import TracebackType

import gtensor as gt

SENTENCE = "sentence"  # gtensor's, with the parameter's name
OWN = "own"  # gtensor's, about the call as a whole
SIGNATURE = "signature"  # Python's, of an argument missing or unknown
NUMPY = "numpy"  # NumPy's, or the system's
USERS = "users"  # raised by code of the caller's
RAW = "raw"  # from the inside
ACCEPTED = "accepted"  # the call returned, although the table calls the value invalid
FITS = "returned"  # the call returned, and may
CRASH, HANG = "crash", "hang"
CLASSES = (SENTENCE, OWN, SIGNATURE, NUMPY, USERS, FITS, RAW, ACCEPTED, CRASH, HANG)

_PACKAGE = os.path.dirname(gt.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_RAISES = {dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]}
_INTERNAL = (AttributeError, KeyError, AssertionError, NameError, RecursionError, UnicodeError,
             ZeroDivisionError, StopIteration)
_NUMPYS = re.compile(
    r"ufunc|axis|axes|reshape|broadcast|[Cc]annot cast|dimension|data type|dtype|array element|"
    r"matmul|aligned|einsum|operands|[Aa]rray|casting|[Uu]nable to allocate|singular|shape|size")
_PYTHONS = re.compile(
    r"object (is|has|of type|does|cannot)|has no |unhashable|not iterable|not subscriptable|"
    r"not callable|unsupported|not supported between|truth value|unpack|expected str|"
    r"embedded null|cannot be interpreted|invalid literal|could not convert|bad operand|"
    r"argument must|must be real|required|expected at|int too|too large|[Mm]aximum recursion")
_SURELY_NUMPYS = re.compile(r"[Nn]um[Pp]y|^array type |DLPack|supports up to 32 dimensions|"
                            r"^expected non-negative|out of bounds for int64")
_OF_FUNCTIONS = re.compile(r"(<lambda>|\.forward)\(\) takes ")  # of the values, of modules
_SIGNATURES = re.compile(
    r"missing \d+ required|unexpected keyword|takes .*positional argument|multiple values for|"
    r"positional-only arguments passed|keyword arguments")


def outcome(error: BaseException, name: str, parameter: str) -> str:
    """The class of an error that a call of `name` raised, whose `parameter` was wrong."""
    frames = list(_frames(error.__traceback__))
    last = frames[-1]
    file = last.tb_frame.f_code.co_filename
    text = text_of(error)
    if text is None:
        return RAW
    if file.startswith(_HERE):
        inner = last.tb_frame.f_code.co_name
        if inner == "__repr__":  # no sentence may depend on it
            return RAW
        if inner in ("call", "__call__"):  # Python's own, at the door
            signature = isinstance(error, TypeError) and _SIGNATURES.search(text)
            return SIGNATURE if signature else RAW
        return USERS
    explicit = file.startswith(_PACKAGE) and _raises(last)
    if explicit:
        if re.search(rf"(?<!\w){re.escape(parameter)}(?!\w)", text):
            return SENTENCE
        return RAW if type(error) in _INTERNAL and "wanted" not in text else OWN
    if isinstance(error, (OSError, MemoryError)) or _SURELY_NUMPYS.search(text):
        return NUMPY
    if isinstance(error, _INTERNAL) or not isinstance(error, (TypeError, ValueError, IndexError)):
        return NUMPY if type(error).__module__.startswith("numpy") else RAW
    if _OF_FUNCTIONS.search(text):
        return USERS
    if _PYTHONS.search(text):
        return RAW
    inside_numpy = f"{os.sep}numpy{os.sep}" in file
    return NUMPY if inside_numpy or _NUMPYS.search(text) else RAW


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def place_of(error: BaseException) -> str:
    """The innermost line of gtensor's that the error passed."""
    ours = [f for f in _frames(error.__traceback__)
            if f.tb_frame.f_code.co_filename.startswith(_PACKAGE)]
    if not ours:
        return ""
    return f"{ours[-1].tb_frame.f_code.co_filename.removeprefix(_PACKAGE)}:{ours[-1].tb_lineno}"


def _raises(place: TracebackType) -> bool:
    """Whether the frame raised the error itself, in a `raise` statement."""
    return place.tb_frame.f_code.co_code[place.tb_lasti] in _RAISES


def text_of(error: BaseException) -> str | None:
    """The error's sentence, None if it cannot be printed."""
    try:
        return str(error)
    except Exception:
        return None
