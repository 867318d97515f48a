"""NumPy's warnings of values name the user's line."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from gtensor.system import source_line

PROGRAM = """\
import numpy as np
import gtensor as gt
x = gt.tensor([-1.0])
gt.log(x)  # here: invalid value encountered in log
gt.log(-gt.ones((600, 600)))  # here: invalid value encountered in log
x / gt.tensor([0.0])  # here: divide by zero encountered in divide
x /= 0.0  # here: divide by zero encountered in divide
gt.tensor([np.inf]).var()  # here: invalid value encountered in subtract
gt.nn.functional.leaky_relu(gt.full(3000, -3e38), 10.0)  # here: overflow encountered in multiply
gt.vmap(gt.log)(x)  # here: invalid value encountered in log
p = gt.ones(3, requires_grad=True)
optimizer = gt.optim.SGD([p], 0.1, momentum=0.5)
for sign in (1, -1):
    p.grad = gt.full(3, sign * np.inf)
    optimizer.step()  # here: invalid value encountered in add
np.log(np.array([-1.0]))  # here: invalid value encountered in log
"""


def run(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, script], capture_output=True, text=True,
                          timeout=600)


def test_a_warning_names_the_users_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    found = [line.partition("script.py:")[2] for line in run(script).stderr.splitlines()[::2]]
    assert found == [f"{number}: RuntimeWarning: {line.partition('# here: ')[2]}"
                     for number, line in enumerate(PROGRAM.splitlines(), 1) if "# here" in line]


def test_a_filter_that_is_passed_on_matches_nothing() -> None:
    ours = source_line._InsideGtensor()
    again = pickle.loads(pickle.dumps(ours))
    assert again.pattern == ours.pattern and not again.match("invalid value encountered in log")


def test_a_warning_may_be_an_error_or_ignored(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import gtensor as gt\ngt.log(gt.tensor([-1.0]))\n")
    ended = run(script, "-W", "error::RuntimeWarning")
    assert ended.returncode == 1 and "script.py\", line 2" in ended.stderr
    assert ended.stderr.endswith("RuntimeWarning: invalid value encountered in log\n")
    assert run(script, "-W", "ignore::RuntimeWarning:__main__").stderr == ""
