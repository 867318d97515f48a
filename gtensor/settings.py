"""Every flag of gtensor in one table: an environment variable, a `with` block and a decorator.

    GTENSOR_ARENA_MIN_BYTES=0 python train.py      # environment, read once at import
    with settings.override(debug=1): ...           # block
    @settings.override(debug=1)                    # decorator

A block changes the whole process, not one thread: flags describe how the program is observed, and
an observer that sees half of the threads would mislead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any


def _flag(default: int, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(slots=True)
class Settings:
    """The flags and their defaults; `describe()` prints this table with the values in force."""

    debug: int = _flag(0, "1: say which device is chosen, and show tracebacks of the command")
    arena_min_bytes: int = _flag(1048576, "CPU arrays from this size on come from the arena")
    arena_steps: int = _flag(0, "round blocks up to so many steps per power of two (0: granules)")
    arena_small_bytes: int = _flag(0, "CUDA blocks up to this size get segments of their own")
    tile_elements: int = _flag(32768, "elements per tile where a CPU path needs a temporary")
    nvtx: int = _flag(-1, "NVTX ranges per op: 1 on, 0 off, -1 on when a profiler is attached")

    @contextlib.contextmanager
    def override(self, **values: int) -> Iterator[Settings]:
        """Set flags for a block (or, as a decorator, for a call) and restore them after it."""
        for name in values:
            if name not in FLAGS:
                raise TypeError(f"unknown setting {name!r}; wanted one of {', '.join(FLAGS)}")
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def describe(self) -> str:
        """The table of flags: environment variable, value in force, meaning."""
        rows = [f"{_variable(f.name):26} {getattr(self, f.name):>8}  {f.metadata['doc']}"
                for f in fields(self)]
        return "\n".join(rows)


FLAGS = tuple(f.name for f in fields(Settings))


def _variable(name: str) -> str:
    return "GTENSOR_" + name.upper()


def _from_environment() -> Settings:
    values = {}
    for name in FLAGS:
        text = os.environ.get(_variable(name))
        if text is None:
            continue
        try:
            values[name] = int(text)
        except ValueError:
            raise ValueError(f"{_variable(name)}={text!r} given; wanted an integer") from None
    return Settings(**values)


settings = _from_environment()
