"""A wrong call of any public callable ends in a sentence; `python -m wrong_calls` lists others."""

from __future__ import annotations

from collections import Counter

import pytest
from wrong_calls import classes
from wrong_calls.callables import PLANTED, Target
from wrong_calls.planted import FUNCTIONS
from wrong_calls.run import Outcome, outcomes, table
from wrong_calls.values import HOSTILE
from wrong_calls.worker import tried

MOST_RAW = MOST_ACCEPTED = 0.01  # of all calls


def checked(found: list[Outcome]) -> None:
    counts = Counter(one.kind for one in found)
    shown = "\n".join(str(one) for one in found if one.kind in (
        classes.RAW, classes.ACCEPTED, classes.CRASH, classes.HANG, "unknown"))
    assert {*counts} <= {*classes.CLASSES}, shown
    assert not counts[classes.CRASH] and not counts[classes.HANG], shown
    assert counts[classes.RAW] <= MOST_RAW * len(found), f"{shown}\n{table(found)}"
    assert counts[classes.ACCEPTED] <= MOST_ACCEPTED * len(found), f"{shown}\n{table(found)}"


@pytest.mark.thorough
def test_a_part_of_the_wrong_calls() -> None:
    found = list(outcomes([], seed=1, count=4_000))
    assert len(found) == 4_000
    checked(found)


@pytest.mark.slow
def test_all_wrong_calls() -> None:
    found = list(outcomes([]))
    assert len(found) >= 9_000 and len({(one.room, one.name) for one in found}) >= 500
    checked(found)


@pytest.mark.parametrize(("name", "value", "wanted"), [
    ("named", "str", classes.SENTENCE), ("unnamed", "str", classes.OWN),
    ("attribute", "str", classes.RAW), ("key", "str", classes.RAW),
    ("unhashable", "list", classes.RAW), ("truth", "str", classes.RAW),
    ("assertion", "str", classes.RAW), ("broken", "evil repr", classes.RAW),
    ("broken", "str", classes.SENTENCE), ("numpys", "str", classes.NUMPY),
    ("inner", "str", classes.RAW), ("two", "str", classes.SIGNATURE),
    ("users", "evil index", classes.USERS),
    ("accepts", "str", classes.ACCEPTED), ("accepts", "-1", classes.FITS)])
def test_the_class_of_a_planted_fault(name: str, value: str, wanted: str) -> None:
    target = Target(PLANTED, name, FUNCTIONS[name])
    assert tried(target, dict, "axis", HOSTILE[value]())[0] == wanted


@pytest.mark.thorough
def test_a_call_that_ends_its_process_and_one_that_does_not_end() -> None:
    """Both are counted, and the calls after them made."""
    found = list(outcomes([PLANTED], seed=2, count=99, each=1, longest=10))
    assert {one.name: one.kind for one in found if one.kind in (classes.CRASH, classes.HANG)} == {
        "crashes": classes.CRASH, "hangs": classes.HANG}
    assert {one.name for one in found} == {*FUNCTIONS}
