"""No assertion of a test reads a clock: it would fail on a machine that is busy enough.

Counts, orders and states are compared. Where only an end proves something, as of a hang, the
runner has a generous limit: `subprocess.run(timeout=)`, `Barrier(timeout=)`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
          "process_time_ns", "thread_time", "thread_time_ns", "time", "time_ns"}


def reads_a_clock(node: ast.AST, read: set[str]) -> bool:
    """Whether an expression calls a clock, or uses a name that was assigned from one."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            function = part.func
            if isinstance(function, ast.Name) and function.id in CLOCKS - {"time"}:
                return True
            if (isinstance(function, ast.Attribute) and function.attr in CLOCKS
                    and isinstance(function.value, ast.Name) and function.value.id == "time"):
                return True
        if isinstance(part, ast.Name) and part.id in read:
            return True
    return False


def assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """What a statement assigns, and from what: element by element where both are tuples."""
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        return [] if node.value is None else [(node.target, node.value)]
    if not isinstance(node, ast.Assign):
        return []
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets:
        if (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                and len(target.elts) == len(node.value.elts)):
            pairs += zip(target.elts, node.value.elts, strict=True)
        else:
            pairs.append((target, node.value))
    return pairs


def found(text: str) -> list[int]:
    """The lines of the assertions that read a clock."""
    lines = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        read: set[str] = set()
        assigned = [pair for node in ast.walk(function) for pair in assignments(node)]
        for _ in assigned:  # a name may be assigned from another one that is assigned further down
            for target, value in assigned:
                if reads_a_clock(value, read):
                    read |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
        lines += [node.lineno for node in ast.walk(function)
                  if isinstance(node, ast.Assert) and reads_a_clock(node.test, read)]
    return sorted(set(lines))


def test_no_assertion_reads_a_clock() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 100
    wrong = [f"{file.relative_to(TESTS)}:{line}" for file in files
             for line in found(file.read_text())]
    assert not wrong, f"{', '.join(wrong)}: compare counts, orders or states instead"


@pytest.mark.parametrize("body", [
    "assert time.monotonic() < 3",
    "began = perf_counter()\n    taken = perf_counter() - began\n    assert run() and taken < 8",
    "total: float = 0\n    total += time.time()\n    assert total",
])
def test_one_that_does_is_found(body: str) -> None:
    assert len(found(f"def test_a():\n    {body}\n")) == 1


def test_clocks_may_be_read_for_other_ends() -> None:
    assert not found("def test_a():\n    until = time.monotonic() + 3\n"
                     "    while time.monotonic() < until and not done():\n        pass\n"
                     "    assert done()\n")
    assert not found("def test_a():\n    taken, text = time.time() - begun, read()\n"
                     "    assert text\n")
