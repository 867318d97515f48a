"""What an export of Nsight Systems says: GPUs' busy time and gaps, and work by op, module, kernel.

    found = Session(read("session.sqlite"))
    found.devices()                       # busy and idle, per GPU
    found.kernels("op")[0]                # the op whose kernels took the longest
    found.gaps(5)                         # the longest times in which a GPU did nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gtensor.profiler.nsys.export import ABSENT, GRAPH, OPEN, Columns, Export
from gtensor.profiler.nsys.joins import Joined, Numbers

OUTSIDE = "(no range)"
NO_MODULE = "(outside modules)"
NO_LAUNCH = "(launch not recorded)"


class Work(NamedTuple):
    """Work of one group. Seconds on the GPU, of calls on the host.

    Attributes:
        name: of the group.
        op: behind most of its time, "" in groups by op and module.
        number, seconds, longest, nbytes: of kernels, copies or calls; bytes only of copies.
    """

    name: str
    op: str
    number: int
    seconds: float
    longest: float
    nbytes: int


class Gpu(NamedTuple):
    """A GPU within the recorded time: seconds in which at least one of its streams worked."""

    device: int
    name: str
    busy: float
    idle: float
    kernels: int
    copies: int


class Gap(NamedTuple):
    """A time in which a GPU did nothing.

    Attributes:
        device: which GPU.
        start: seconds since the recorded time began.
        seconds: how long.
        next: the op of the work that ended it, "" at the end of the recorded time.
        host: what ran longest meanwhile on the thread that launched that work.
        call: CUDA's API call that took longest meanwhile there, "" if none was made.
        call_seconds: how long, within the gap.
    """

    device: int
    start: float
    seconds: float
    next: str
    host: str
    call: str
    call_seconds: float


class Session:
    """An export, joined: which op, phase and module is behind kernels, copies, calls and gaps."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.joined = Joined(export)
        self.start, self.end = self._recorded()

    @property
    def seconds(self) -> float:
        """The recorded time: the captured steps, else from the first event to the last."""
        return (self.end - self.start) * 1e-9

    @property
    def has_ranges(self) -> bool:
        """Whether ranges of the domain `gtensor` were recorded."""
        return len(self.joined.ranges) > 0

    def updates(self) -> int:
        """Updates of optimizers."""
        is_update = [label.name.endswith(" update") and not label.is_op and not label.module
                     for label in self.joined.labels]
        return int(np.array(is_update, bool)[self.joined.label].sum())

    def devices(self) -> list[Gpu]:
        """The GPUs that worked."""
        work = self.export.work
        found = []
        for device in np.unique(work["device"]).tolist():
            own = work[work["device"] == device]
            starts, ends = self._busy(own)
            busy = int((ends - starts).sum())
            kernels = int((own["kind"] <= GRAPH).sum())
            found.append(Gpu(device, self.export.gpus.get(device, ""), busy * 1e-9,
                             (self.end - self.start - busy) * 1e-9, kernels, len(own) - kernels))
        return found

    def kernels(self, group_by: str) -> list[Work]:
        """Kernels, and graphs recorded as one, by "op", "module" or "kernel", longest first."""
        rows = np.flatnonzero(self.export.work["kind"] <= GRAPH)
        label, launch = self.joined.of_work[rows], self.joined.launch[rows]
        if group_by == "kernel":
            return self._named(self.export.work[rows], label, launch)
        return self._grouped(self.export.work[rows], self._behind(label, launch, group_by))

    def host(self) -> list[Work]:
        """Ops, and ranges outside of ops, by their time on the host without ops within."""
        joined = self.joined
        own = np.bincount(joined.behind, joined.nested.own_times(), len(joined.ranges))
        chosen = joined.behind == np.arange(len(own))
        rows, launched = joined.ranges[chosen], np.zeros(int(chosen.sum()), np.int64)
        rows["end"] = rows["start"] + own[chosen].astype(np.int64)
        return self._grouped(rows, self._behind(joined.label[chosen], launched, "op"))

    def copies(self) -> list[Work]:
        """Copies and memsets by direction, with the op behind most of their time."""
        rows = np.flatnonzero(self.export.work["kind"] > GRAPH)
        return self._named(self.export.work[rows], self.joined.of_work[rows],
                           self.joined.launch[rows])

    def calls(self) -> list[Work]:
        """Calls of CUDA's API by name, with the op behind most of their time."""
        calls = self.export.calls
        return self._named(calls, self.joined.of_calls, np.zeros(len(calls), np.int64))

    def gaps(self, most: int) -> list[Gap]:
        """The longest times in which a GPU did nothing, longest first."""
        found: list[tuple[int, int, int, int]] = []  # length, device, start, end
        for device in np.unique(self.export.work["device"]).tolist():
            starts, ends = self._busy(self.export.work[self.export.work["device"] == device])
            begins = np.concatenate([[self.start], ends])
            lengths = np.concatenate([starts, [self.end]]) - begins
            longest = np.argsort(-lengths, kind="stable")[:most]
            found += [(length, device, start, start + length) for length, start in zip(
                lengths[longest].tolist(), begins[longest].tolist(), strict=True) if length > 0]
        found.sort(key=lambda one: (-one[0], one[2]))
        return [self._gap(*one[1:]) for one in found[:most]]

    def _recorded(self) -> tuple[int, int]:
        """When the recorded time begins and ends."""
        joined, export = self.joined, self.export
        tables = [rows for rows in (joined.ranges, export.calls, export.work) if len(rows)]
        ends = [rows["end"][rows["end"] < OPEN].max(initial=rows["start"].max())
                for rows in tables]
        last = int(max(ends, default=0))
        if joined.steps is not None:
            start, end = joined.steps
            return start, max(start, last if end == OPEN else end)
        return int(min((rows["start"].min() for rows in tables), default=0)), last

    def _busy(self, work: Columns) -> tuple[Numbers, Numbers]:
        """Starts and ends of the times in which some of the work ran, in order."""
        starts = np.clip(work["start"], self.start, self.end)
        ends = np.clip(work["end"], self.start, self.end)
        order = np.argsort(starts, kind="stable")
        order = order[ends[order] > starts[order]]
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        new = np.append(True, starts[1:] > ends[:-1])[:len(starts)]
        return starts[new], ends[np.append(new[1:], True)[:len(ends)]]

    def _gap(self, device: int, start: int, end: int) -> Gap:
        """What the host did in a gap."""
        export, joined = self.export, self.joined
        work = export.work
        after = np.flatnonzero((work["device"] == device) & (work["start"] >= end))
        following = ABSENT if end >= self.end or not len(after) else int(
            after[np.argmin(work["start"][after])])
        call = ABSENT if following == ABSENT else int(joined.launch[following])
        thread = int(export.calls["thread"][call]) if call != ABSENT else self._main_thread()
        name, seconds = self._longest_call(thread, start, end)
        return Gap(device, (start - self.start) * 1e-9, (end - start) * 1e-9,
                   "" if following == ABSENT else self._ops([following])[0],
                   self._host(thread, start, end), name, seconds)

    def _ops(self, work: Sequence[int]) -> list[str]:
        names = self._behind(self.joined.of_work[work], self.joined.launch[work], "op")
        return [names[0][at] for at in names[1].tolist()]

    def _main_thread(self) -> int:
        threads, counts = np.unique(self.joined.ranges["thread"], return_counts=True)
        return int(threads[np.argmax(counts)]) if len(threads) else ABSENT

    def _host(self, thread: int, start: int, end: int) -> str:
        """What ran longest on a thread between two times."""
        ranges, lengths = self.joined.nested.during(thread, start, end)
        label = self.joined.labels_of(ranges)
        outside = end - start - int(lengths[label != ABSENT].sum())
        totals = np.bincount(label + 1, lengths, len(self.joined.labels) + 1)
        totals[0] = outside
        at = int(np.argmax(totals))
        return self.joined.labels[at - 1].name if at else OUTSIDE

    def _longest_call(self, thread: int, start: int, end: int) -> tuple[str, float]:
        calls = self.export.calls
        lengths = np.where(calls["thread"] == thread, np.minimum(calls["end"], end)
                           - np.maximum(calls["start"], start), 0)
        at = int(np.argmax(lengths)) if len(calls) else 0
        if not len(calls) or lengths[at] <= 0:
            return "", 0.0
        return self._text(int(calls["text"][at])), int(lengths[at]) * 1e-9

    def _text(self, text: int) -> str:
        return self.export.texts[text] if text != ABSENT else "(no name)"

    def _behind(self, label: Numbers, launch: Numbers, what: str) -> tuple[list[str], Numbers]:
        """Names of ops or modules, and which of them is behind each row."""
        names: dict[str, int] = {}
        of_label = [names.setdefault(one.name if what == "op" else one.module or NO_MODULE,
                                     len(names)) for one in self.joined.labels]
        none = names.setdefault(OUTSIDE if what == "op" else NO_MODULE, len(names))
        lost = names.setdefault(NO_LAUNCH, len(names))
        which = np.array([*of_label, none], np.int64)[label]
        return [*names], np.where(launch == ABSENT, lost, which)

    def _grouped(self, rows: Columns, behind: tuple[list[str], Numbers]) -> list[Work]:
        names, which = behind
        return _sums(rows, [(name, "") for name in names], which)

    def _named(self, rows: Columns, label: Numbers, launch: Numbers) -> list[Work]:
        """The rows by their own names, and the op behind most of the time of each."""
        names, which = self._behind(label, launch, "op")
        pairs, pair = np.unique((rows["text"] + 1) * len(names) + which, return_inverse=True)
        parts = _sums(rows, [(self._text(one // len(names) - 1), names[one % len(names)])
                             for one in pairs.tolist()], pair)
        found: dict[str, Work] = {}
        for part in parts:  # the longest comes first
            known = found.get(part.name)
            found[part.name] = part if known is None else Work(
                part.name, known.op, known.number + part.number, known.seconds + part.seconds,
                max(known.longest, part.longest), known.nbytes + part.nbytes)
        return sorted(found.values(), key=lambda one: (-one.seconds, one.name, one.op))


def _sums(rows: Columns, names: Sequence[tuple[str, str]], which: Numbers) -> list[Work]:
    """The groups that have rows, longest first."""
    lengths = rows["end"] - rows["start"]
    count = np.bincount(which, minlength=len(names))
    seconds = np.bincount(which, lengths, len(names)) * 1e-9
    longest = np.zeros(len(names), np.int64)
    np.maximum.at(longest, which, lengths)
    sizes: Any = rows["bytes"] if "bytes" in (rows.dtype.names or ()) else np.zeros(len(rows))
    nbytes = np.bincount(which, sizes, len(names))
    found = [Work(*names[at], int(count[at]), float(seconds[at]), float(longest[at]) * 1e-9,
                  int(nbytes[at])) for at in np.flatnonzero(count).tolist()]
    return sorted(found, key=lambda one: (-one.seconds, one.name, one.op))
