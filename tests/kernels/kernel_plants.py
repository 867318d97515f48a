"""Many broken texts as one, so that one compilation serves them: a number chooses the fault.

`planted` finds where a broken text differs, and the expression or the statements that the
difference lies in. There stands a choice between these and the broken ones, by `gt_planted`, which
a machine reads from its environment when it starts (host/server.h). What cannot be chosen while a
function runs, such as the size of an array, leaves the broken text alone. `machines` are those of
many faults.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernel_host import HostMachine, Toolchain, machine_text
from kernel_toolchain import FIBERS, THREADS, Build

from gtensor.hostcuda.kernels.text import visible

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPENING = {last: first for first, last in _CLOSING.items()}
_BODY = re.compile(r"(?:\)(?:\s*(?:const|noexcept|mutable)\b)*|\belse|\bdo|[;{}])\s*\Z")
"""What stands before a block of statements, and not before a class or a list of values."""
_DECLARES = re.compile(
    r"(?!(?:return|else|if|for|while|do|switch|case|goto|delete)\b)[\w:]+(?:<[^;()]*>)?[\s*&]+\w")
"""Two names side by side, of which the first begins no other statement."""
_ASSIGNS = re.compile(r"(?<![-+*/%&|^<>=!])=(?!=)")


@dataclass(frozen=True)
class Plant:
    """A text, the same one broken or not, the names of the kernels that are launched, a build."""

    text: str
    broken: str
    kernels: tuple[str, ...]
    build: Build


Key = TypeVar("Key", bound=Hashable)


@contextlib.contextmanager
def machines(
    toolchain: Toolchain, plants: dict[Key, Plant]
) -> Iterator[dict[Key, HostMachine]]:
    """The machine of each; what can be is compiled with the others of its text and build."""
    def compiled(source: tuple[str, list[str], Build]) -> Path:
        return toolchain.executable(machine_text(*source), source[2])

    numbers: dict[Key, int] = {}
    texts: dict[Key, tuple[str, Build]] = {}
    sources: dict[tuple[str, Build], tuple[str, list[str], Build]] = {}
    for text, build in dict.fromkeys((plant.text, plant.build) for plant in plants.values()):
        mine = {key: plant for key, plant in plants.items()
                if (plant.text, plant.build) == (text, build)}
        names = list(dict.fromkeys(name for plant in mine.values() for name in plant.kernels))
        broken = list(dict.fromkeys(plant.broken for plant in mine.values()
                                    if plant.broken != text))
        whole, found = planted(text, broken)
        number_of = dict(zip(broken, found, strict=True)) | {text: 0}
        for key, plant in mine.items():
            numbers[key] = number_of[plant.broken]
            together = numbers[key] or plant.broken == text
            texts[key] = whole if together else plant.broken, build
            sources[texts[key]] = texts[key][0], names, build
    for build in (FIBERS, THREADS):
        toolchain.machine(build)
    with ThreadPoolExecutor(max_workers=2) as pool:
        executables = dict(zip(sources, pool.map(compiled, sources.values()), strict=True))
    made = {key: HostMachine(executables[texts[key]], number) for key, number in numbers.items()}
    yield made
    for machine in made.values():
        machine.close()


@dataclass(frozen=True)
class _Place:
    """A part of a text: an expression, or whole statements."""

    start: int
    end: int
    statements: bool

    def choice(self, old: str, new: dict[int, str]) -> str:
        """What stands here: the broken part of the number that is planted, or else the old one."""
        if self.statements:
            return "".join(f"if (gt_planted == {number}) {{ {text}\n}} else "
                           for number, text in new.items()) + f"{{ {old}\n}}"
        chosen = "".join(f"gt_planted == {number} ? ({text}\n) : " for number, text in new.items())
        return f"({chosen}({old}\n))"


def planted(text: str, broken: Sequence[str]) -> tuple[str, list[int]]:
    """A text with the faults of all the broken ones, and their numbers; 0 is that of a text alone.

    With 0 planted it is the unbroken one.
    """
    shown = visible(text)
    edits = [_difference(text, each) for each in broken]
    places = [_place(shown, start, end) for start, end, _ in edits]
    whole = text
    for place, which in reversed(_merged(places)):
        new = {}
        for i in which:
            start, end, inserted = edits[i]
            new[i + 1] = text[place.start:start] + inserted + text[end:place.end]
        old = text[place.start:place.end]
        whole = whole[:place.start] + place.choice(old, new) + whole[place.end:]
    return whole, [i + 1 if place else 0 for i, place in enumerate(places)]


def _difference(text: str, broken: str) -> tuple[int, int, str]:
    """Where a text begins and ends to differ, and what the broken one has in between."""
    start = _alike(text, broken)
    same = _alike(text[start:][::-1], broken[start:][::-1])
    return start, len(text) - same, broken[start:len(broken) - same]


def _alike(one: str, other: str) -> int:
    """How many signs two texts begin with alike."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[:middle] == other[:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _merged(places: list[_Place | None]) -> list[tuple[_Place, list[int]]]:
    """The places in the order of the text, those that overlap as one, and their indices."""
    merged: list[tuple[_Place, list[int]]] = []
    for place, i in sorted(((place, i) for i, place in enumerate(places) if place),
                           key=lambda each: (each[0].start, -each[0].end)):
        if merged and place.start < merged[-1][0].end:
            last, which = merged[-1]
            both = _Place(last.start, max(last.end, place.end), last.statements)
            merged[-1] = both, [*which, i]
        else:
            merged.append((place, [i]))
    return merged


def _place(shown: str, start: int, end: int) -> _Place | None:
    """The smallest expression, or the statements, that a part of a text lies in, if they run."""
    part = shown[start:end]
    end = start + len(part.rstrip())
    start = min(start + len(part) - len(part.lstrip()), end)
    while True:
        start, end = _balanced(shown, start, end)
        opened = _bound(shown, start - 1, -1)
        if opened < 0 or shown[opened] == "{":
            break
        last = _bound(shown, end, 1, ",;")
        chosen_early = shown[opened - 10:opened].rstrip().endswith("constexpr")
        if _bound(shown, start, 1, ",;") == last and not chosen_early:
            first = _value(shown, _bound(shown, start - 1, -1, ",;") + 1, start)
            return _Place(first, last, False) if _runs(shown, opened) else None
        start, end = opened, _bound(shown, end, 1) + 1
    first = _statement(shown, start)
    if _DECLARES.match(shown, first):
        value, last = _value(shown, first, start), _bound(shown, end, 1, ",;")
        constant = value == first or "constexpr" in shown[first:value]
        return None if constant else _Place(value, last, False)
    whole = shown[start:end].endswith((";", "}"))
    last = end if whole else _bound(shown, end, 1, ";}") + 1
    return _Place(first, last, True) if _has_statements(shown, opened) else None


def _value(shown: str, first: int, at: int) -> int:
    """Where the value begins that is assigned here, or else `first`."""
    return max([first, *(found.end() for found in _ASSIGNS.finditer(shown, first, at))])


def _statement(shown: str, at: int) -> int:
    """Where the statement begins that has this place."""
    first = _bound(shown, at - 1, -1, ";}") + 1
    return min(first + len(shown[first:at]) - len(shown[first:at].lstrip()), at)


def _has_statements(shown: str, opened: int) -> bool:
    """Whether a bracket is a block of a function."""
    return opened >= 0 and _BODY.search(shown, max(0, opened - 200), opened) is not None


def _runs(shown: str, opened: int) -> bool:
    """Whether a bracket is no list of parameters, and no size of an array."""
    first = _statement(shown, opened)
    if not _DECLARES.match(shown, first) or _ASSIGNS.search(shown, first, opened):
        return True
    return shown[opened] == "(" and _has_statements(shown, _bound(shown, opened - 1, -1))


def _balanced(shown: str, start: int, end: int) -> tuple[int, int]:
    """A part, extended to the other ends of its brackets."""
    waiting = 0
    for sign in shown[start:end]:
        waiting += (sign in _CLOSING) - (sign in _OPENING)
        if waiting < 0:
            return _balanced(shown, _bound(shown, start - 1, -1), end)
    return (start, end) if not waiting else _balanced(shown, start, _bound(shown, end, 1) + 1)


def _bound(shown: str, at: int, step: int, signs: str = "") -> int:
    """The next place in a direction with the end of the bracket around it, or one of `signs`.

    Inner brackets are passed over; with "}" among the signs, the end of an inner block counts.
    """
    into, out = (_CLOSING, _OPENING) if step > 0 else (_OPENING, _CLOSING)
    depth = 0
    while 0 <= at < len(shown):
        sign = shown[at]
        if depth == 0 and (sign in out or sign in signs):
            return at
        depth += (sign in into) - (sign in out)
        if depth == 0 and sign in out and sign in signs:
            return at
        at += step
    return at
