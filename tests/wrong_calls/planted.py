"""Functions with a fault each, as if they were gtensor's: what the classes must tell apart."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gtensor as gt

_TEXT = '''
def named(axis: "int") -> None:
    raise TypeError(f"named was given axis of {type(axis).__name__}; wanted an integer")

def unnamed(axis: "int") -> None:
    raise TypeError("no such call; wanted another")

def attribute(axis: "int") -> None:
    axis.no_such_name

def key(axis: "int") -> None:
    raise KeyError("axis2")

def unhashable(axis: "int") -> None:
    {axis if isinstance(axis, list) else [axis]: 1}

def truth(axis: "int") -> None:
    bool(np.ones(2))

def assertion(axis: "int") -> None:
    assert axis is time

def broken(axis: "int") -> None:
    raise TypeError(f"broken was given axis={axis!r}; wanted an integer")

def numpys(axis: "int") -> None:
    np.zeros(3).reshape(2, 2)

def two(axis: "int", other: "int") -> None:
    pass

def inner(axis: "int") -> None:
    _two(axis)

def users(axis: "int") -> None:
    axis.__index__()

def accepts(axis: "int") -> None:
    pass

def crashes(axis: "int") -> None:
    os.kill(os.getpid(), signal.SIGSEGV)

def hangs(axis: "int") -> None:
    time.sleep(3600)
'''


def _two(first: Any, second: Any) -> None:
    """It is given one."""


def _functions() -> dict[str, Callable[..., Any]]:
    names: dict[str, Any] = {"np": np, "os": os, "signal": signal, "time": time, "_two": _two}
    before = {*names}
    package = os.path.dirname(gt.__file__)
    exec(compile(_TEXT, os.path.join(package, "planted.py"), "exec"), names)
    return {name: made for name, made in names.items()
            if name not in before and name != "__builtins__"}


FUNCTIONS = _functions()
