"""The pool of threads of compiled paths, in C: its calls are right, and so says ThreadSanitizer.

`threads_driver.c` makes them: from three threads at once, within ranges, and in forks.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
POOL = HERE.parents[1] / "gtensor" / "backend" / "_threads.c"
# text of the pool -> what it is replaced by, and what the driver or the sanitizer says then
PLANTED = {
    "the caller does not wait": (
        "    while (call.running) pthread_cond_wait(&range_is_done, &lock);\n", "",
        "data race|wrong: a call that ended"),
    "a range is taken twice": (
        "    call.next = end;\n    pthread_mutex_unlock(&lock);\n",
        "    pthread_mutex_unlock(&lock);\n    call.next = end;\n", "data race|wrong: an item"),
    "a fork counts on threads that it does not have": (
        "    started = 0;\n", "", "wrong: the pool of a fork"),
    "flags of the pool's threads are lost": (
        "    if (flags) feraiseexcept(flags);\n", "", "wrong: the flags after a call"),
    "threads that are late are asked again": (
        "    without = next_without;\n", "", "wrong: threads that are late"),
    "the pool's threads round in their own way": (
        "        fesetenv(&call.environment);\n", "", "wrong: the rounding mode"),
}

pytestmark = pytest.mark.thorough


def said(folder: Path, pool: Path, *options: str) -> str:
    """What the driver and the sanitizer print, with that text of the pool."""
    program = folder / "driver"
    built = subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-g", "-pthread", *options, f"-I{POOL.parent}",
         HERE / "threads_driver.c", pool, "-lm", "-o", program], capture_output=True, text=True)
    assert not built.returncode and not built.stderr, built.stderr
    run = subprocess.run([program, "400", "3"], capture_output=True, text=True, timeout=120,
                         env={**os.environ, "TSAN_OPTIONS": "die_after_fork=0:halt_on_error=1"})
    return run.stdout + run.stderr


def test_calls_are_right_and_race_with_nothing(tmp_path: Path) -> None:
    assert said(tmp_path, POOL, "-Wall", "-Wextra", "-Werror") == "right\n"
    assert said(tmp_path, POOL, "-fsanitize=thread") == "right\n"


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    text, instead, wrong = PLANTED[fault]
    right = POOL.read_text()
    assert right.count(text) == 1
    planted = tmp_path / "planted.c"
    planted.write_text(right.replace(text, instead))
    options = ["-fsanitize=thread"] if "race" in wrong else []
    found = said(tmp_path, planted, *options)
    assert any(words in found for words in wrong.split("|")), found
