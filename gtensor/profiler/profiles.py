"""A profile: what was recorded, and its views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from os import PathLike
from shutil import get_terminal_size
from typing import Any

from gtensor.memory.trace.export import check_folder
from gtensor.profiler.spans import ProfileError, Recorded, Span
from gtensor.system.atomic import write_file
from gtensor.system.collector import collector_paused


class Profile:
    """What `gt.profiler.profile` measured; its views write files and tables.

    A view whose file cannot be written raises OSError, in one sentence; an existing file stays.
    """

    def __init__(self, read: Callable[[], Recorded]) -> None:
        self._read: Callable[[], Recorded] | None = read

    @cached_property
    def recorded(self) -> Recorded:
        """The data, computed when it is first asked for; that waits for the GPUs' work.

        Raises ProfileError within the block that is measured.
        """
        assert self._read is not None
        found = self._read()
        self._read = None  # so that what was noted is not kept beside what follows from it
        return found

    @property
    def spans(self) -> list[Span]:
        """The spans, in order of their begins."""
        return self.recorded.spans

    @property
    def live(self) -> list[tuple[float, str, int]]:
        """After each allocation: seconds, the device's name, live bytes of its arena."""
        return self.recorded.live

    @property
    def seconds(self) -> float:
        """Of the block."""
        return self.recorded.seconds

    @property
    def machine(self) -> dict[str, Any]:
        """The device that worked, versions, and its measured ceilings."""
        return self.recorded.machine

    def table(self, sort_by: str = "time", group_by: str = "op", most: int = 15) -> str:
        """The ops by group as a table of text, as `print(profile)` shows it.

        Columns: calls; seconds on the host and, on a GPU, there, each without ops within; their
        share; launches; bytes read and written, and operations, by the ops' definitions
        (`Op.flops`), per second and in percent of this machine's measured ceilings; blocks taken
        from the arena, and how many of them were made of memory that it held.

        Args:
            sort_by: "time", "calls", "launches", "bytes", "flops" or "allocations".
            group_by: "op", "module", "phase" or "line" (of the user's code).
            most: rows.

        Raises ValueError for another order or group, or without rows; ModuleNotFoundError without
        rich.
        """
        from gtensor.profiler import table
        from gtensor.system.notebook import Text

        table.require_rich()
        width = get_terminal_size().columns
        return Text(table.table(self.recorded, sort_by, group_by, most, width))

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        if "recorded" not in self.__dict__:  # to read it may wait for a GPU
            return "<Profile, not read yet>"
        return f"<Profile of {len(self.spans):,} spans in {self.seconds:.3g} s>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the ops that took most time."""
        from gtensor.profiler import table
        from gtensor.system.notebook import lines

        try:
            return table.html(self.recorded)
        except ProfileError:  # within the block
            return lines(repr(self))

    def chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write a trace for https://ui.perfetto.dev or chrome://tracing: `.json`, or `.json.gz`.

        Threads and streams are tracks, live bytes are counters, arrows lead from ops to their
        backward rules.
        """
        from gtensor.profiler.chrome_trace import trace

        self._write(path, (".json", ".json.gz"), lambda: trace(self.recorded, str(path)))

    def html(self, path: str | PathLike[str]) -> None:
        """Write a page (`.html`) that opens offline: ops and memory over time, and a table."""
        from gtensor.profiler.page import html_file

        self._write(path, (".html",), lambda: html_file(self.recorded))

    def flame(self, path: str | PathLike[str]) -> None:
        """Write a picture (`.png`) of the time by phase, module and op.

        Raises ModuleNotFoundError without matplotlib.
        """
        from gtensor.profiler import pictures

        pictures.require_matplotlib()
        self._write(path, (".png",), lambda: pictures.flame(self.recorded))

    def roofline(self, path: str | PathLike[str]) -> None:
        """Write a picture (`.png`) of ops by operations per byte and per second, under the
        machine's ceilings (Williams, Waterman and Patterson, CACM 2009).

        Raises ModuleNotFoundError without matplotlib.
        """
        from gtensor.profiler import pictures

        pictures.require_matplotlib()
        self._write(path, (".png",), lambda: pictures.roofline(self.recorded))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the profile itself (`.json`), which `load` and `gtensor profile --compare` read."""
        from gtensor.profiler.saved import json_file

        self._write(path, (".json",), lambda: json_file(self.recorded))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Profile:
        """A profile that `save` wrote. Raises ProfileError for another file, OSError without one.

        Nothing in the file is run.
        """
        from gtensor.profiler.saved import read

        found = read(path)
        return cls(lambda: found)

    def _write(self, path: str | PathLike[str], suffixes: Sequence[str],
               make: Callable[[], bytes]) -> None:
        """Write a view, after everything that can be refused was checked."""
        if not str(path).endswith(tuple(suffixes)):
            raise ValueError(f"file {str(path)!r} given; wanted a name ending in "
                             f"{' or '.join(suffixes)}")
        check_folder(path)
        with collector_paused():
            write_file(path, make())
