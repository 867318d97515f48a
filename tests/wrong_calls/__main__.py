"""Prints how the wrong calls of some rooms ended: `python -m wrong_calls --help`."""

from __future__ import annotations

import argparse

from wrong_calls import classes
from wrong_calls.run import outcomes, table

SHOWN = (classes.RAW, classes.ACCEPTED, classes.CRASH, classes.HANG, "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m wrong_calls", description=__doc__)
    parser.add_argument("rooms", nargs="*", help="such as nn.init, Tensor, or gt; all without one")
    parser.add_argument("--seed", type=int, help="a part that a seed chooses, not all")
    parser.add_argument("--count", type=int, default=9_000, help="how large a part")
    parser.add_argument("--longest", type=float, default=20, help="seconds after which one hangs")
    parser.add_argument("--only", help="list the calls of one callable, whatever their class")
    parser.add_argument("--show", nargs="*", default=SHOWN, help="classes to list")
    given = parser.parse_args()
    rooms = ["" if room == "gt" else room for room in given.rooms]
    found = []
    for one in outcomes(rooms, given.seed, given.count, longest=given.longest):
        found.append(one)
        if given.only == one.name or not given.only and one.kind in given.show:
            print(one, flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
