"""Runs the blocks of a page from top to bottom, as a reader would, and compares what they print.

    ```python                    runs; blocks of one page share their names
    ```python title="train.py"   is written to that file
    ```console                   lines that begin with "$ " run; the lines below are their output
    ```text                      right after one of the first kind: what that block prints
    ```text title="times vary"   the same, of which the words are compared, in any order

Other blocks (`sh`, a text elsewhere) are only shown. `python -m documents PAGE` runs a page in the
current folder and prints, as JSON, what its blocks printed; `check` does so in another folder, and
compares.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHIN = 0.01  # by which part a number with a decimal point may differ, or by its last digit
VARIES = "times vary"
SECONDS = 1200
_FENCED = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.S | re.M)
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d*(?:e[+-]?\d+)?(?![\w.]*\d)")


@dataclass
class Block:
    """A fenced block, and the text that shows what it prints ("" if none does)."""

    language: str
    title: str | None
    text: str
    line: int  # of the page, before its first one
    shown: str = ""
    varies: bool = False  # only the words of what is shown are compared


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that run or are written, in order."""
    text = page.read_text(encoding="utf-8")
    fences = sum(line.lstrip().startswith("```") for line in text.splitlines())
    if not text.count("```") == fences == 2 * len(_FENCED.findall(text)):
        raise ValueError(f"{page.name} has a fence that is not read as one; wanted each at the "
                         "beginning of a line, with a language and no more than a title")
    found: list[Block] = []
    end = -1  # of the Python block before, if nothing but empty lines follows it
    for match in _FENCED.finditer(text):
        block = Block(match[1], match[2], match[3], text.count("\n", 0, match.start(3)))
        if block.language in ("python", "console"):
            found.append(block)
            end = match.end() if block.language == "python" and not block.title else -1
        elif block.language == "text" and end >= 0 and not text[end:match.start()].strip():
            found[-1].shown, found[-1].varies = block.text, block.title == VARIES
    return found


def commands_of(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that the page shows."""
    first, *parts = re.split(r"^\$ ", block.text, flags=re.M)
    if first.strip():
        raise ValueError(f"line {block.line + 1} of a console block is {first.strip()!r}; wanted "
                         "a command, '$ ...'")
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def run_here(page: Path) -> list[str]:
    """Run a page in the current folder; what its blocks printed, and each of its commands."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # where pickles look for the page's classes
    printed = []
    for block in blocks_of(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            printed += [_output(command) for command, _ in commands_of(block)]
        else:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * block.line + block.text, page.name, "exec"), vars(main))
            printed.append(out.getvalue())
    return printed


def _output(command: str) -> str:
    ran = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True)
    if ran.returncode:
        raise RuntimeError(f"`{command}` ended with status {ran.returncode}:\n{ran.stdout}")
    return ran.stdout


def check(page: Path, folder: Path) -> list[str]:
    """What is wrong with a page that is run in `folder`, a sentence each."""
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONWARNINGS": "error", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100",
        "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    ran = subprocess.run([sys.executable, "-m", "documents", str(page)], cwd=folder,
                         env=environment, capture_output=True, text=True, timeout=SECONDS)
    if ran.returncode:
        return [f"{page.name} did not run to its end:\n{ran.stderr}"]
    return list(_differences(page, json.loads(ran.stdout)))


def _differences(page: Path, printed: list[str]) -> Iterator[str]:
    outputs = iter(printed)
    for block in blocks_of(page):
        if block.title:
            continue
        if block.language == "console":
            for command, shown in commands_of(block):
                found = next(outputs)
                if shown.strip() and not matches(shown, found):
                    yield _difference(f"{page.name}: `{command}`", shown, found)
        elif not (same_words if block.varies else matches)(block.shown, found := next(outputs)):
            yield _difference(f"{page.name}, block below line {block.line}", block.shown, found)


def _difference(where: str, shown: str, found: str) -> str:
    return f"{where} prints\n{found or 'nothing'}\nThe page shows\n{shown or 'nothing'}"


def same_words(shown: str, printed: str) -> bool:
    """Whether two texts have the same words of three letters or more: units may differ.

    Where `...` is shown, more words may be printed.
    """
    first, second = (Counter(re.findall(r"[A-Za-z_]{3,}", text)) for text in (shown, printed))
    return first <= second if "..." in shown else first == second


def matches(shown: str, printed: str) -> bool:
    """Whether a text on a page is what was printed.

    `...` stands for anything. A number with a decimal point may differ by `WITHIN` of it, or by one
    unit of its last digit. Runs of spaces are equal, and line ends have none.
    """
    shown, printed = (re.sub(r" +", " ", re.sub(r"[ \n]+$", "", text, flags=re.M))
                      for text in (shown, printed))
    pattern, end = "", 0
    wanted = []
    for part in re.finditer(rf"\.\.\.|{_NUMBER.pattern}", shown):
        pattern += re.escape(shown[end:part.start()])
        end = part.end()
        if part[0] == "...":
            pattern += r".*?"
        else:
            pattern += f"({_NUMBER.pattern})"
            wanted.append(part[0])
    found = re.fullmatch(pattern + re.escape(shown[end:]), printed, re.S)
    return found is not None and all(map(_close, wanted, found.groups()))


def _close(wanted: str, found: str) -> bool:
    digits, _, power = wanted.partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    a, b = ast.literal_eval(wanted), ast.literal_eval(found)
    return abs(a - b) <= max(WITHIN * abs(a), 1.001 * unit)


if __name__ == "__main__":
    sys.__stdout__.write(json.dumps(run_here(Path(sys.argv[1]).resolve())))
