"""Pickles of plain values, read without the pickle module.

Python's unpickler trusts the sizes in a file: nine bytes make it reserve 8 GB for its memo. This
reader has only the instructions for numbers, texts, lists, tuples and dicts (protocols 2 to 5), so
no pickle can make it run code. It reads piece by piece and stops at the first other instruction;
the memory it takes is bounded by the bytes in the file.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError
from typing import Any

from gtensor.system.files import (
    MOST_CONTAINERS,
    MOST_DEPTH,
    MOST_INTEGER_BYTES,
    MOST_TEXT_BYTES,
    printable,
)

_unsigned2, _unsigned4, _signed4, _float8 = (
    Struct(form).unpack_from for form in ("<H", "<I", "<i", ">d"))
_LONGEST = 16 + MOST_TEXT_BYTES  # an instruction with its argument
_CODES = {code.name: ord(code.code) for code in pickletools.opcodes}
_NAMES = {code: name for name, code in _CODES.items()}
(_PROTO, _FRAME, _STOP, _MARK, _GET, _LONG_GET, _PUT, _LONG_PUT, _MEMOIZE, _INT, _INT1, _INT2,
 _LONG, _FLOAT, _DICT, _LIST, _SETITEM, _SETITEMS, _APPEND, _APPENDS, _TUPLE) = (
    _CODES[name] for name in (
        "PROTO", "FRAME", "STOP", "MARK", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT",
        "MEMOIZE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "EMPTY_DICT", "EMPTY_LIST",
        "SETITEM", "SETITEMS", "APPEND", "APPENDS", "TUPLE"))
_CONSTANTS: dict[int, Any] = {_CODES["NONE"]: None, _CODES["NEWTRUE"]: True,
                              _CODES["NEWFALSE"]: False, _CODES["EMPTY_TUPLE"]: ()}
_TUPLES = {_CODES["TUPLE1"]: 1, _CODES["TUPLE2"]: 2, _CODES["TUPLE3"]: 3}
_TEXTS = {_CODES["SHORT_BINUNICODE"]: 1, _CODES["BINUNICODE"]: 4}  # bytes of the length
_BYTES = {_CODES["SHORT_BINBYTES"]: 1, _CODES["BINBYTES"]: 4}


def load(pieces: Iterable[bytes]) -> Any:
    """The value of a pickle that comes in pieces.

    A value that the pickle has in several places is made once; keys of dicts are texts. Raises
    ValueError, with a text that calls the pickle "it", unless it is a pickle of plain values.
    """
    source = iter(pieces)
    data, at, safe = b"", 0, -1  # an instruction that begins up to `safe` is complete in `data`
    stack: list[Any] = []
    below: list[list[Any]] = []  # stacks, each up to a mark
    memo: list[Any] = []
    containers = 0
    try:
        while True:
            if at > safe:
                data, at = _filled(data[at:], source), 0
                safe = len(data) - _LONGEST if len(data) > _LONGEST else len(data)
            code = data[at]
            at += 1
            # most frequent instructions first
            if code == _GET:
                stack.append(memo[data[at]])
                at += 1
            elif code == _INT:
                stack += _signed4(data, at)
                at += 4
            elif code == _LONG_GET:
                stack.append(memo[_unsigned4(data, at)[0]])
                at += 4
            elif code == _MEMOIZE:
                memo.append(stack[-1])
            elif code == _INT1:
                stack.append(data[at])
                at += 1
            elif code == _LONG:
                end = at + 1 + _bounded(data[at], MOST_INTEGER_BYTES, "bytes of an integer")
                stack.append(int.from_bytes(data[at + 1:end], "little", signed=True))
                at = end
            elif code == _MARK:
                _bounded(len(below) + 1, MOST_DEPTH, "containers within each other")
                below.append(stack)
                stack = []
            elif code in (_DICT, _LIST):
                containers += 1
                _bounded(containers, MOST_CONTAINERS, "lists and dicts")
                stack.append({} if code == _DICT else [])
            elif code == _SETITEMS:
                found, stack = stack, below.pop()
                _set(stack[-1], found[::2], found[1::2])
            elif code == _INT2:
                stack += _unsigned2(data, at)
                at += 2
            elif code in (_PUT, _LONG_PUT):
                end = at + (1 if code == _PUT else 4)
                if int.from_bytes(data[at:end], "little") != len(memo):
                    raise ValueError("it numbers what it repeats in leaps, as no pickle does")
                memo.append(stack[-1])
                at = end
            elif code == _FLOAT:
                stack += _float8(data, at)
                at += 8
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code in _TEXTS or code in _BYTES:
                start = at + (_TEXTS.get(code) or _BYTES[code])
                at = start + _bounded(int.from_bytes(data[at:start], "little"),
                                      MOST_TEXT_BYTES, "bytes of a text")
                stack.append(str(data[start:at], "utf-8", "surrogatepass") if code in _TEXTS
                             else data[start:at])
            elif code == _APPENDS:
                found, stack = stack, below.pop()
                _list(stack[-1]).extend(found)
            elif code == _SETITEM:
                value, key = stack.pop(), stack.pop()
                _set(stack[-1], [key], [value])
            elif code == _APPEND:
                value = stack.pop()
                _list(stack[-1]).append(value)
            elif code in _TUPLES:
                size = _TUPLES[code]
                stack[-size:] = [tuple(stack[-size:])]
            elif code == _TUPLE:
                found, stack = stack, below.pop()
                stack.append(tuple(found))
            elif code == _PROTO:
                at += 1
            elif code == _FRAME:
                at += 8
            elif code == _STOP:
                return stack.pop()
            else:
                raise ValueError(_refused(code, data[at:at + 200], stack))
    except (IndexError, StructError):
        raise ValueError("it ends early, or takes what is not there") from None


def _filled(rest: bytes, source: Iterator[bytes]) -> bytes:
    """The rest of the data, with as much more as any instruction may need."""
    for piece in source:
        rest += piece
        if len(rest) > _LONGEST:
            break
    return rest


def _bounded(count: int, most: int, what: str) -> int:
    if count > most:
        raise ValueError(f"it has {count} {what}, wanted at most {most}")
    return count


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"it appends to a {type(value).__name__}")
    return value


def _set(place: object, keys: list[Any], values: list[Any]) -> None:
    if type(place) is not dict:
        raise ValueError(f"it sets items of a {type(place).__name__}")
    if len(keys) != len(values):
        raise ValueError("it sets a key without a value")
    try:
        "".join(keys)  # the fastest check that all are texts
    except TypeError:  # never hash other keys: for nested tuples that takes exponential time
        raise ValueError("it has a key of a dict that is no text") from None
    place.update(zip(keys, values, strict=True))


def _refused(code: int, data: bytes, stack: list[Any]) -> str:
    """The message for an instruction that is refused."""
    name = _NAMES.get(code, f"{code:#x}")
    if name in ("PERSID", "BINPERSID"):
        return "it refers to objects outside of it, which a snapshot never does"
    if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
        named = [text for text in stack[-2:] if isinstance(text, str)]
        if name != "STACK_GLOBAL":
            named = data.decode("utf-8", "replace").split("\n")[:2]
        return (f"it wants to build {printable('.'.join(named))}, which a snapshot never does, so "
                "it was not read further")
    return f"it has the instruction {name}, wanted a pickle of protocol 2 to 5 with plain values"
