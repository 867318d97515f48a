"""Makes wrong calls in a process of its own, and says how each ended: a line of JSON per call.

Each call is announced before it is made, so that whoever reads knows which one ended the process.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gtensor as gt
from gtensor import kinds
from gtensor.system.bus import bus
from wrong_calls import classes
from wrong_calls.callables import (
    PLANTED,
    Target,
    call,
    parameters,
    search,
    targets,
    wrong_parameters,
)
from wrong_calls.values import HOSTILE

MOST_MEMORY = 6 << 30
MOST_SHOWN = 160


def chosen(
    rooms: set[str], seed: int | None, count: int, each: int
) -> Iterator[tuple[Target, str, str]]:
    """Wrong calls: (callable, parameter, name of the value), `count` of a seed's, else all."""
    found = [target for target in targets() if target.room in rooms or (
        not rooms and target.room != PLANTED)]
    if seed is None:
        for target in found:
            for name in wrong_parameters(target):
                yield from ((target, name, value) for value in HOSTILE)
        return
    rng = random.Random(seed)
    places = [(target, name) for target in found for name in wrong_parameters(target)]
    rng.shuffle(places)
    for target, name in places[:count // each]:
        for value in rng.sample(list(HOSTILE), each):
            yield target, name, value


def _reset() -> None:
    """What calls change for the whole process."""
    gt.set_default_dtype("float32")
    gt.set_default_device("cpu")
    gt.set_grad_enabled(True)
    gt.set_num_threads(1)
    gt.manual_seed(0)
    gt.memory.set_limit(None, "cpu")
    for listener in list(bus.listeners):
        bus.remove(listener)


def tried(
    target: Target, make: Callable[[], dict[str, Any]], name: str, value: Any
) -> tuple[str, str, str]:
    """The class of a call with one wrong argument, what was said, and where."""
    parameter = parameters(target)[name]
    fits = name == "self" or kinds.kind_of(parameter).fits(value)
    try:
        call(target, make() | {name: value})
    except BaseException as error:
        found = classes.outcome(error, target.name, name)
        said = f"{type(error).__name__}: {classes.text_of(error)}"[:MOST_SHOWN]
        return found, said, classes.place_of(error)
    return (classes.FITS if fits else classes.ACCEPTED), "", ""


def main() -> None:
    rooms, seed, count, each, skip = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    last: Target | None = None
    make: Callable[[], dict[str, Any]] | None = None
    for i, (target, name, value) in enumerate(chosen(set(rooms), seed, count, each)):
        if i < skip:
            continue
        if target is not last:
            last, make = target, search(target)
            _reset()
        given = HOSTILE[value]()
        out.write(f'["{target.room}", "{target.name}", "{name}", "{value}"]\n')
        if make is None:
            out.write('["unknown", "", ""]\n')
            continue
        found = tried(target, make, name, given)
        out.write(json.dumps(found) + "\n")
        _reset()


if __name__ == "__main__":
    main()
