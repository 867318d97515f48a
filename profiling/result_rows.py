"""Result files of ladders as rows: read, checked, and compared with older ones."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isclose, isfinite
from pathlib import Path
from statistics import StatisticsError
from typing import Any

from ladder import Spread
from ladder_command import SCHEMA, number, spread_text, target_text

from gtensor.system.documents import Facts, told
from gtensor.system.files import read_all

MOST_BYTES = 64 << 20  # of a result file; 332 ladders with their samples have 0.4 MB
NOISE = 1.05  # a median that moved by less is no change
FLOOR = "the floor's rate"  # as a peer
WORSE, BETTER = "worse", "better"


class Refused(Exception):
    """What is given cannot be reported; one sentence says why."""


@dataclass(frozen=True)
class Row:
    """A ratio with its quartiles; or a figure, one number in `unit`, which has no rung and peer."""

    what: str
    rung: str
    peer: str
    spread: Spread
    unit: str = ""
    target: float | None = None
    beside: float | None = None  # seconds that the target allows beside the ratio
    met: bool | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.what, self.rung, self.peer

    @property
    def label(self) -> str:
        """What it is of, in one line."""
        return " / ".join(filter(None, self.key))

    @property
    def value(self) -> str:
        """A ratio with its quartiles, or a figure with its unit."""
        return spread_text(self.spread) if self.rung else number(self.spread.median, self.unit)

    @property
    def judged(self) -> str:
        """The target and whether it is met."""
        if self.target is None:
            return ""
        target = (target_text(self.target, self.beside) if self.rung
                  else number(self.target, self.unit))
        return f"{target}: {'met' if self.met else '**missed**'}"


@dataclass(frozen=True)
class Result:
    """A result file. `notes` are of each ladder: what was left out, and why.

    `superseded` counts the rows left out because a newer file, by its name, has them.
    """

    name: str  # of the file
    program: str
    date: str
    command: str
    device: str
    slug: str
    processor: str  # or the GPU
    machine: str  # in words
    versions: str
    conditions: str  # rounds, threads, clocks
    rows: tuple[Row, ...]
    notes: dict[str, tuple[str, ...]]
    superseded: dict[str, int] = field(default_factory=dict)


def parsed(name: str, text: bytes | bytearray) -> Result:
    """A result from the bytes of its file. Refused names the file and what is wrong with it."""
    try:
        document = Facts("the file", json.loads(text))
        if document.whole("schema") != SCHEMA:
            raise ValueError(f"its schema is {document.whole('schema')}, wanted {SCHEMA}")
        machine = Facts("'machine'", document.inner("machine"))
        gpu = machine.found.get("gpu")
        processor = Facts("'gpu'", gpu).text("name") if gpu else machine.text("processor")
        ladders = document.each("ladders", "a ladder")
        clocks = sorted({ladder.text("clock") for ladder in ladders})
        threads = document.found.get("blas_threads")
        return Result(
            name, document.text("program"), document.text("date"), document.text("command"),
            document.text("device"), machine.text("slug"), processor,
            f"{processor}, {machine.whole('cores')} cores, "
            f"{machine.whole('memory_bytes') / 2**30:.0f} GiB, {machine.text('system')}",
            ", ".join(f"{package} {version}"
                      for package, version in document.inner("versions").items()),
            f"{document.whole('rounds')} rounds, "
            f"{'threads as they were' if threads is None else f'{threads} thread'}"
            + "".join(f", clock {clock}" for clock in clocks),
            (*_ratios(ladders), *map(_figure, document.each("figures", "a figure"))),
            {ladder.text("name"): tuple(map(str, ladder.many("notes"))) for ladder in ladders})
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} is no result of a ladder program: {error}") from None


def _ratios(ladders: list[Facts]) -> Iterator[Row]:
    for ladder in ladders:
        what = ladder.text("name")
        rungs = ladder.each("rungs", f"a rung of {what!r}")
        samples = {rung.text("name"): rung.many("samples", ()) for rung in rungs}
        for ratio in ladder.each("ratios", f"a ratio of {what!r}"):
            met, spread = ratio.found.get("met"), _spread(ratio)
            row = Row(what, ratio.text("rung"), ratio.text("peer"), spread, "",
                      _maybe(ratio, "target"), _maybe(ratio, "beside"),
                      None if met is None else ratio.flag("met"))
            own, peers = samples.get(row.rung), samples.get(row.peer)
            if own and peers:
                again = _of_samples(row, own, peers)
                if not all(map(isclose, again.json().values(), spread.json().values())):
                    raise ValueError(f"{row.label} is {spread_text(spread)}, but its samples say "
                                     f"{spread_text(again)}")
            yield row
        for rung in rungs:
            if rung.found.get("above_floor"):
                above = Facts("'above_floor'", rung.inner("above_floor"))
                yield Row(what, rung.text("name"), FLOOR, _spread(above))


def _of_samples(row: Row, own: Sequence[Any], peers: Sequence[Any]) -> Spread:
    """The ratio, formed within each round."""
    try:
        return Spread.of([a / b for a, b in zip(own, peers, strict=True)])
    except (TypeError, ZeroDivisionError, ValueError, StatisticsError):
        raise ValueError(f"{row.label} has samples that form no ratio, wanted as many positive "
                         "numbers of both") from None


def _figure(figure: Facts) -> Row:
    value, met = _number(figure, "measured"), figure.found.get("met")
    return Row(figure.text("name"), "", "", Spread(value, value, value), figure.text("unit"),
               _maybe(figure, "target"), None, None if met is None else figure.flag("met"),
               figure.text("note"))


def _spread(facts: Facts) -> Spread:
    found = Spread(*(_number(facts, name) for name in ("median", "low", "high")))
    if not 0 < found.low <= found.median <= found.high:
        raise ValueError(f"{facts.what} has quartiles {spread_text(found)}, wanted positive ones "
                         "in order")
    return found


def _number(facts: Facts, key: str) -> float:
    value: Any = facts.like(key, 1.0)
    if not isfinite(value):
        raise ValueError(f"{key!r} of {facts.what} is {told(value)}, wanted a finite number")
    return float(value)


def _maybe(facts: Facts, key: str) -> float | None:
    return None if facts.found.get(key) is None else _number(facts, key)


# -- folders and revisions -------------------------------------------------------------------------


def of_folder(folder: Path) -> list[Result]:
    """The results in a folder, all of one machine."""
    if not folder.is_dir():
        raise Refused(f"there is no folder {folder}; wanted one with results of ladders")
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(parsed(path.name, read_all(path, MOST_BYTES)))
        except (OSError, ValueError) as error:
            raise Refused(f"{path} cannot be read: {error}") from None
    return _of_one_machine(found, str(folder))


def of_revision(root: Path, revision: str, slug: str) -> list[Result]:
    """The results of a machine as a git revision has them."""
    place = f"profiling/results/{slug}"

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True).stdout

    try:
        git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except (subprocess.CalledProcessError, OSError):
        raise Refused(f"{revision!r} is neither a folder nor a git revision of {root}") from None
    names = git("ls-tree", "--name-only", revision, f"{place}/").decode().splitlines()
    return _of_one_machine([parsed(Path(name).name, git("show", f"{revision}:{name}"))
                            for name in names if name.endswith(".json")],
                           f"{place} of {revision}")


def _of_one_machine(found: list[Result], place: str) -> list[Result]:
    if not found:
        raise Refused(f"{place} has no results (*.json) of ladders")
    for result in found:
        if result.slug != found[0].slug:
            raise Refused(f"{place} mixes results of different machines: {found[0].name} is of "
                          f"{found[0].slug}, {result.name} of {result.slug}")
    return found


def without_superseded(results: Sequence[Result]) -> list[Result]:
    """A machine's results, each row only in the newest file of its program and device."""
    newest: dict[tuple[str, str, tuple[str, str, str]], Result] = {}
    for result in sorted(results, key=lambda result: result.date):
        newest |= {(result.program, result.device, row.key): result for row in result.rows}
    found = []
    for result in results:
        homes = [newest[result.program, result.device, row.key] for row in result.rows]
        found.append(replace(
            result,
            rows=tuple(row for row, home in zip(result.rows, homes, strict=True)
                       if home is result),
            superseded=dict(Counter(home.name for home in homes if home is not result))))
    return found


# -- changes ---------------------------------------------------------------------------------------


def change(old: Row, new: Row) -> str:
    """WORSE or BETTER if a value moved by more than noise, else "".

    A ratio's quartiles must lie apart, too. A figure has no spread, so it is worse only if it also
    misses its target.
    """
    before, now = old.spread, new.spread
    if now.median > NOISE * before.median and (
            now.low > before.high if new.rung else new.met is False):
        return WORSE
    if NOISE * now.median < before.median and now.high < before.low:
        return BETTER
    return ""
