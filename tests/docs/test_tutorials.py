"""Tutorials: their blocks run from top to bottom and print what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import check, matches, same_words

PAGES = sorted((Path(__file__).parents[2] / "docs/tutorials").glob("*.md"))


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert not check(page, tmp_path)


GOOD = """# A page

```python title="script.py"
print("half of it", 0.5)
```

```python
import math

root = math.sqrt(2)
print("root", root)
```

```text
root 1.4142
```

A text that no block prints:

```text
nothing of this
```

```python
print(f"{root:.1f}", "and more")     # a name of the block before
```

```text
1.4 and ...
```

```python
print("took 3.5 ms")
```

```text title="times vary"
took 7.25 us
```

```console
$ python script.py
half of it 0.5
$ python -c "print(1)"
```
"""
FAULTS = {  # a fault of a page -> what is replaced, by what, and what the check says
    "a wrong number": ("root 1.4142", "root 1.44", "block below line 7 prints\nroot 1.4142"),
    "a wrong word": ("1.4 and ...", "1.4 or ...", "prints\n1.4 and more"),
    "a wrong word beside times": ("took 7.25", "lasted 7.25", "shows\nlasted 7.25 us"),
    "a block that raises": ("sqrt(2)", "sqrt(-2)", 'File "page.md", line 10'),
    "a name that is not there": ("{root:.1f}", "{rot:.1f}", "name 'rot' is not defined"),
    "a warning": ("import math", "import warnings\nwarnings.warn('old')", "UserWarning: old"),
    "a block that prints nothing": ('print("root", root)', "", "prints\nnothing"),
    "a block whose output is not shown": ("```text\nroot 1.4142\n```", "", "shows\nnothing"),
    "a command that fails": ("script.py\nhalf", "none.py\nhalf", "ended with status 2"),
    "a command that prints something else": ("it 0.5\n$", "it 0.9\n$", "`python script.py`"),
    "a fence within a line": ("\n```python\nim", "\nSo: ```python\nim", "a fence that is not"),
    "a console block without a command": ("$ python script.py", "python script.py", "wanted a com"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_a_fault_of_a_page_is_found(fault: str, tmp_path: Path) -> None:
    before, after, said = FAULTS.get(fault, ("", "", ""))
    page = tmp_path / "page.md"
    assert before in GOOD
    page.write_text(GOOD.replace(before, after, 1) if before else GOOD, encoding="utf-8")
    found = "\n".join(check(page, tmp_path))
    assert found == "" if fault == "none" else said in found


@pytest.mark.parametrize(("shown", "printed", "same"), [
    ("loss 0.342", "loss 0.343", True), ("loss 0.342", "loss 0.346", False),
    ("loss 12.0", "loss 12.1", True), ("loss 12.0", "loss 12.3", False),
    ("3 rows", "4 rows", False), ("-1.5e-3", "-1.49e-3", True), ("-1.5e-3", "1.5e-3", False),
    ("a ... 2.5", "a b\nc 2.5", True), ("a ... 2.5", "a b\nc 12.5", False),
    ("a   b", "a b  \n", True), ("a\nb", "a b", False), ("numpy 2.1.3", "numpy 2.1.4", False),
])
def test_what_counts_as_the_same_output(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


@pytest.mark.parametrize(("shown", "printed", "same"), [
    ("tanh 3 us\nexp 2 us", "exp 4 ms\ntanh 3 us", True), ("tanh 3 us", "tan 3 us", False),
    ("tanh 3 us", "tanh 3 us\nexp 1 us", False), ("some words", "", False),
    ("tanh ... 3 us", "tanh 3 us\nexp 1 us", True), ("tanh tanh ...", "tanh exp", False),
])
def test_what_counts_as_the_same_words(shown: str, printed: str, same: bool) -> None:
    assert same_words(shown, printed) is same
