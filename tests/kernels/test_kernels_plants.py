"""One text with many faults computes, for each number, what the text broken alone computes."""

from __future__ import annotations

import kernel_plants
import numpy as np
import pytest
from kernel_host import Toolchain
from kernel_plants import Plant, planted
from kernel_toolchain import FIBERS

TEXT = """
struct scaled {
  static constexpr int most = 8;
  const int factor = 3 + 2;  // a value of each object
  __device__ int of(int x) const { return x * factor; }
};

template <int n>
__device__ int twice(int x, int y) {
  int sums[n] = {};
  for (int i = 0; i < 4; ++i)
    if (i % 2 == 0) sums[i % n] += x;  // even ones
  if constexpr (n > 1) sums[0] += 100;
  return sums[0] + y;
}

__global__ void values(int *y) {
  const scaled by{};
  y[0] = by.of(2);
  int a = 1, b = twice<2>(10, 1);
  y[1] = b;  // not yet more
  y[2] = a;
  if (a) {
    y[3] = a + 1;
  }
  y[4] = scaled::most;
}
"""
BROKEN = {  # what is replaced, by what, and what is computed then
    "a value of an object": ("3 + 2", "3 * 2", [12, 121, 1, 2, 8]),
    "an argument": ("(10, 1)", "(11, 1)", [10, 123, 1, 2, 8]),
    "arguments that change places": ("(10, 1)", "(1, 10)", [10, 112, 1, 2, 8]),
    "a condition": ("i < 4", "i < 2", [10, 111, 1, 2, 8]),
    "a statement in others": ("sums[i % n] += x;  // even ones", "{}", [10, 101, 1, 2, 8]),
    "a condition of the compiler": ("n > 1", "n > 2", [10, 21, 1, 2, 8]),
    "a result": ("sums[0] + y", "y", [10, 1, 1, 2, 8]),
    "a statement and its comment": ("y[1] = b;  // not yet", "//", [10, 0, 1, 2, 8]),
    "two statements": ("y[2] = a;\n  if (a) {", "if (!a) {", [10, 121, 0, 0, 8]),
    "a statement within one that is broken": ("a + 1", "a + 2", [10, 121, 1, 3, 8]),
    "a declaration's value": ("int a = 1,", "int a = 4,", [10, 121, 4, 5, 8]),
}
ALONE = {
    "a constant of the compiler": ("most = 8", "most = 9", [10, 121, 1, 2, 9]),
    "a signature": ("int x, int y", "int y, int x", [10, 112, 1, 2, 8]),
    "an array's size": ("sums[n] = {}", "sums[n + 1] = {}", [10, 121, 1, 2, 8]),
}
CASES = BROKEN | ALONE


def _broken(name: str) -> str:
    old, new, _ = CASES[name]
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new)


def test_the_number_that_is_planted_chooses(toolchain: Toolchain) -> None:
    plants = {name: Plant(TEXT, _broken(name), ("values",), FIBERS) for name in CASES}
    plants["none"] = Plant(TEXT, TEXT, ("values",), FIBERS)
    wanted = {name: values for name, (_, _, values) in CASES.items()} | {
        "none": [10, 121, 1, 2, 8]}
    with kernel_plants.machines(toolchain, plants) as machines:
        found = {name: machine.launch("values", (1,), (1,), [np.zeros(5, np.int32)])[0].tolist()
                 for name, machine in machines.items()}
    assert found == wanted


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_chosen_stays_alone(name: str) -> None:
    _, (number,) = planted(TEXT, [_broken(name)])
    assert (number == 0) == (name in ALONE)
