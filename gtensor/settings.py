"""Every flag of gtensor in one table: an environment variable, a `with` block and a decorator.

    GTENSOR_ARENA_MIN_BYTES=0 python train.py      # environment, read once at import
    with settings.override(debug=1): ...           # block
    @settings.override(debug=1)                    # decorator

A flag is an integer, or a text with known choices; anything else is refused.

A block changes the whole process: flags that observe only some threads would mislead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from gtensor.system.interrupts import in_turn


def _flag(default: int | str, doc: str, choices: tuple[str, ...] = ()) -> Any:
    if choices:
        doc += f" ({', '.join(choices)})"
    return field(default=default, metadata={"doc": doc, "choices": choices})


@dataclass(slots=True)
class Settings:
    """The flags and their defaults; `describe()` prints this table with the values in force."""

    debug: int = _flag(0, "1: name the device, full tracebacks, check indices on a GPU, put every "
                           ".grad back after an error; from import on 2: a line per op; 3: "
                           "checksums of saved arrays, too; 4: the lines of code, too")
    compiled: int = _flag(1, "0: paths of the CPU use no kernels in C, but NumPy's "
                         "functions; 2: kernels also where they take longer")
    arena_min_bytes: int = _flag(1048576, "CPU arrays from this size on come from the "
                                 "arena; an eighth of it in replays of captured steps")
    arena_steps: int = _flag(0, "round blocks up to so many steps per power of two (0: granules)")
    arena_small_bytes: int = _flag(0, "CUDA blocks up to this size get segments of their own")
    cuda_source: str = _flag("cudamalloc", "where the arena of a CUDA device gets its segments",
                             ("cudamalloc", "virtual", "async"))
    chunk_bytes: int = _flag(1 << 28, "bytes for vmap's chunk_size='auto' on a CPU without a limit")
    tile_elements: int = _flag(32768, "elements per tile where a CPU path needs a temporary")
    tf32: int = _flag(0, "1: float32 products on CUDA by TF32, with 10 bits of the mantissa")
    repeatable: int = _flag(0, "1: on CUDA values at indices that repeat are summed in one order, "
                               "sorted, and not by atomics: bits repeat; not in captured graphs")
    collective_timeout: int = _flag(300, "seconds that a rank waits for the others")
    capture_steps: int = _flag(0, "from import on: so many optimizer steps are what nsys captures")
    capture_after: int = _flag(10, "optimizer steps before those that nsys captures")
    nvtx: int = _flag(-1, "NVTX: 1 all ranges, 2 with shapes, -1 in nvtx_ranges() blocks, 0 none")

    def __setattr__(self, name: str, value: int | str) -> None:
        if name in FLAGS:  # else the slots refuse it
            _check(name, value, f"settings.{name} = {value!r}")
        _count(self, name, value)
        object.__setattr__(self, name, value)
        if name in _watchers:
            _watchers[name](value)

    @contextlib.contextmanager
    def override(self, **values: int | str) -> Iterator[Settings]:
        """Set flags for a block (or, as a decorator, for a call) and restore them after it."""
        for name in values:
            if name not in FLAGS:
                raise TypeError(f"unknown setting {name!r}; wanted one of {', '.join(FLAGS)}")
        before = {name: getattr(self, name) for name in values}
        restore = in_turn(*[partial(object.__setattr__, self, name, value)
                            for name, value in before.items()])
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield self
        finally:
            try:
                for name, value in before.items():
                    _count(self, name, value)
            finally:
                restore()
            for name in _watchers.keys() & values:
                _watchers[name](getattr(self, name))

    def watch(self, name: str, told: Callable[[Any], None]) -> None:
        """Call `told(value)` now and whenever the flag is set."""
        _watchers[name] = told
        told(getattr(self, name))

    def describe(self) -> str:
        """The table of flags: environment variable, value in force, meaning."""
        rows = [f"{_variable(f.name):26} {getattr(self, f.name):>10}  {f.metadata['doc']}"
                for f in fields(self)]
        return "\n".join(rows)


_watchers: dict[str, Callable[[Any], None]] = {}


def _count(settings: Settings, name: str, value: object) -> None:
    """Tell recorded steps, if a flag is to have another value."""
    if getattr(settings, name, value) != value:
        from gtensor.system import structure

        structure.changed(f"settings.{name} was set")


_FIELDS = {f.name: f for f in fields(Settings)}
FLAGS = tuple(_FIELDS)


def _check(name: str, value: object, given: str) -> None:
    """Raise ValueError for a value that the flag cannot have; `given` names its source."""
    choices = _FIELDS[name].metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"{given} given; wanted one of " + ", ".join(map(repr, choices)))
    if not choices and not isinstance(value, int):
        raise ValueError(f"{given} given; wanted an integer")


def _variable(name: str) -> str:
    return "GTENSOR_" + name.upper()


def _from_environment() -> Settings:
    values: dict[str, int | str] = {}
    for name in FLAGS:
        text = os.environ.get(_variable(name))
        if text is None:
            continue
        value: int | str = text
        if not _FIELDS[name].metadata["choices"]:
            with contextlib.suppress(ValueError):
                value = int(text)
        _check(name, value, f"{_variable(name)}={text!r}")
        values[name] = value
    return Settings(**values)  # type: ignore[arg-type]


settings = _from_environment()
