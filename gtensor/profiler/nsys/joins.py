"""Ranges, calls and GPU work of an export, joined: which op is behind what.

Work has the correlation of the call that launched it, the call a thread and a time, and ranges of
that thread enclose the time. All of it is done on whole columns.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from gtensor.backend.nvtx import DOMAIN
from gtensor.profiler.capture import LABEL
from gtensor.profiler.nsys.export import (
    ABSENT,
    CATEGORY,
    OPEN,
    PUSH_POP,
    START_END,
    Columns,
    Export,
    process,
)
from gtensor.profiler.nsys.export import DOMAIN as DOMAIN_CREATED
from gtensor.profiler.nsys.labels import Label, parsed

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Joined:
    """An export with what lies behind its calls and its work.

    Attributes:
        ranges: those of the domain `gtensor`, of which each ends within the one around it.
        labels: what they can be, without repetitions.
        label: which of them each range has.
        nested: which range is the innermost when.
        steps: start and end of the captured steps, None if all of a program was recorded.
    """

    def __init__(self, export: Export) -> None:
        self.export = export
        marks = self._of_domain()
        self.ranges = marks[marks["kind"] == PUSH_POP]
        spans = marks[(marks["kind"] == START_END) & self._named(marks, LABEL)]
        self.labels, self.label = self._labels(marks)
        self.nested = Nested(self.ranges)
        self.steps = (int(spans["start"].min()), int(spans["end"].max())) if len(spans) else None

    @cached_property
    def launch(self) -> Numbers:
        """By work, the call that launched it, or ABSENT."""
        calls, work = self.export.calls, self.export.work
        whose = process(calls["thread"])
        its = work["process"].copy()
        if len(work) and (its == ABSENT).all():  # an old export: of one process, or ambiguous
            its[:] = whose[0] if len(whose) else ABSENT
        key = _codes((whose, its), (calls["correlation"], work["correlation"]))
        own, wanted = key[:len(calls)], key[len(calls):]
        order = np.lexsort((calls["start"], own))
        at = np.searchsorted(own[order], wanted)
        at[at == len(calls)] = 0
        if not len(calls):
            return np.full(len(work), ABSENT)
        found = order[at]
        return np.where((own[found] == wanted) & (work["correlation"] != ABSENT), found, ABSENT)

    @cached_property
    def of_calls(self) -> Numbers:
        """By call, the label behind it, or ABSENT."""
        calls = self.export.calls
        return self.labels_of(self.nested.at(calls["thread"], calls["start"]))

    @cached_property
    def of_work(self) -> Numbers:
        """By work, the label behind it, or ABSENT."""
        return _taken(self.of_calls, self.launch)

    def labels_of(self, ranges: Numbers) -> Numbers:
        """By range (or ABSENT), the label of what is behind it."""
        return _taken(self.label, _taken(self.behind, ranges))

    @cached_property
    def behind(self) -> Numbers:
        """By range, the innermost op that it is or lies in, or the range itself."""
        number = np.arange(len(self.ranges))
        is_op = np.array([label.is_op for label in self.labels], bool)[self.label]
        above = np.append(np.where(is_op, number, self.nested.parents()), ABSENT)
        for _ in range(len(number).bit_length()):  # each time twice as far up
            above = above[above]
        found = above[:-1]
        return np.where(_taken(is_op, found) == 1, found, number)

    def _named(self, marks: Columns, text: str) -> Any:
        return np.array([*(one == text for one in self.export.texts), False])[marks["text"]]

    def _of_domain(self) -> Columns:
        """The rows of the domain `gtensor`, of all processes."""
        marks = self.export.marks
        key = _codes((process(marks["thread"]),), (marks["domain"],))
        own = key[(marks["kind"] == DOMAIN_CREATED) & self._named(marks, DOMAIN)]
        return marks[np.isin(key, own)]

    def _labels(self, marks: Columns) -> tuple[list[Label], Numbers]:
        """The labels, and which of them each range has."""
        named = marks[marks["kind"] == CATEGORY]
        key = _codes((process(named["thread"]), process(self.ranges["thread"])),
                     (named["category"], self.ranges["category"]))
        text_of = dict(zip(key[:len(named)].tolist(), named["text"].tolist(), strict=True))
        texts = [*self.export.texts, ""]
        kinds, kind = np.unique(key[len(named):], return_inverse=True)
        categories = [texts[text_of.get(one, ABSENT)] for one in kinds.tolist()]
        pairs = self.ranges["text"] * max(1, len(kinds)) + kind
        different, which = np.unique(pairs, return_inverse=True)
        found: dict[Label, int] = {}
        numbers = [found.setdefault(parsed(texts[pair // max(1, len(kinds))],
                                           categories[pair % max(1, len(kinds))]), len(found))
                   for pair in different.tolist()]
        return [*found], np.array(numbers, np.int64)[which]


class Nested:
    """Ranges that nest in each thread; which is the innermost at a time.

    Starts and ends are sorted, and behind each of them the innermost open range is known: as ranges
    nest, it is the last one that began at the depth that is open then. Times count in half
    nanoseconds, so that an empty range ends half a nanosecond after its start.
    """

    def __init__(self, ranges: Columns) -> None:
        count = len(ranges)
        starts, ends = 2 * ranges["start"], 2 * ranges["end"]
        ends = np.maximum(ends, starts + 1)
        number = np.arange(count)
        times = np.concatenate([starts, ends])
        thread = np.tile(ranges["thread"], 2)
        begins = np.repeat([True, False], count)
        order = np.lexsort((  # ends come first, of inner ranges; then starts, of outer ones
            np.concatenate([number, -number]), np.concatenate([-ends, -starts]), begins, times,
            thread))
        self._times, self._threads = times[order], thread[order]
        begins, self._range = begins[order], np.tile(number, 2)[order]
        depth = np.cumsum(np.where(begins, 1, -1))
        sort = np.lexsort((depth, self._threads))  # stable: within a depth they stay in order
        last = np.maximum.accumulate(np.where(begins[sort], np.arange(2 * count), 0))
        open_ = self._range[sort[last]]  # each depth but 0 begins with a start
        self._inner = np.empty(2 * count, np.int64)
        self._inner[sort] = np.where(depth[sort] > 0, open_, ABSENT)
        self._begins = begins

    def parents(self) -> Numbers:
        """By range, the one around it, or ABSENT."""
        before = np.roll(self._inner, 1)
        before[:1] = ABSENT
        before[1:][self._threads[1:] != self._threads[:-1]] = ABSENT
        found = np.empty(len(self._range) // 2, np.int64)
        found[self._range[self._begins]] = before[self._begins]
        return found

    def at(self, threads: Numbers, times: Numbers) -> Numbers:
        """By thread and time, the innermost range, or ABSENT."""
        count = len(self._times)
        all_threads = np.concatenate([self._threads, threads])
        order = np.lexsort((np.concatenate([self._times, 2 * times]), all_threads))
        latest = np.maximum.accumulate(np.where(order < count, order, ABSENT))
        found = np.where(latest == ABSENT, ABSENT, _taken(self._inner, latest))
        found[_taken(self._threads, latest) != all_threads[order]] = ABSENT
        result = np.empty(len(order), np.int64)
        result[order] = found
        return result[count:]

    def own_times(self) -> Numbers:
        """By range, for how long it was the innermost; of one that was not closed, until its
        thread's last begin or end."""
        times = self._times // 2
        after = np.append(times[1:], times[-1:])
        same = np.append(self._threads[1:], self._threads[-1:]) == self._threads
        lengths = np.where(same & (after < OPEN), after - times, 0)
        inside = self._inner != ABSENT
        found = np.bincount(self._inner[inside], lengths[inside], len(self._inner) // 2)
        return found.astype(np.int64)

    def during(self, thread: int, start: int, end: int) -> tuple[Numbers, Numbers]:
        """The innermost ranges of a thread between two times, and how long each of them was it."""
        first = np.searchsorted(self._threads, thread)
        last = np.searchsorted(self._threads, thread, "right")
        times = self._times[first:last]
        low, high = np.searchsorted(times, [2 * start, 2 * end])
        low = max(low - 1, 0)
        edges = np.clip(np.append(times[low:high] // 2, end), start, end)
        return self._inner[first + low:first + high], np.diff(edges)


def _codes(*columns: tuple[Numbers, ...]) -> Numbers:
    """A number for each row of joined tables, equal where all columns are."""
    code: Numbers | None = None
    for parts in columns:
        _, found = np.unique(np.concatenate(parts), return_inverse=True)
        if code is None:
            code = found
        else:
            _, code = np.unique(code * (len(found) + 1) + found, return_inverse=True)
    assert code is not None
    return code


def _taken(values: Numbers, indices: Numbers) -> Numbers:
    """The values at indices, ABSENT where the index is."""
    return np.append(values, ABSENT)[indices]
