"""How many statements of a PyTorch program a port to gtensor changes.

    python profiling/port_lines.py FOLDER

Each program of the folder is compared with the one of its name and `_gtensor`, if there is one.

A statement is one of Python's; of a compound one (`if`, `for`, `except`, `def`) its first line
counts. Import lines and docstrings are left out. What the port adds is counted, too.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

PORT = "_gtensor"


def statements(text: str) -> list[str]:
    """The program's statements in one spelling."""
    return [*_statements(ast.parse(text).body)]


def _statements(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom) or (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        blocks = [getattr(node, name, None) or [] for name in ("body", "orelse", "finalbody")]
        handlers = getattr(node, "handlers", [])
        for name in ("body", "orelse", "finalbody", "handlers"):
            if hasattr(node, name):
                setattr(node, name, [])
        yield ast.unparse(node)
        for handler in handlers:
            blocks.append(handler.body)
            handler.body = []
            yield ast.unparse(handler)
        for block in blocks:
            yield from _statements(block)


def changed(original: str, port: str) -> tuple[int, int]:
    """(statements of the original, how many of them are changed or how many the port has more)."""
    theirs, ours = statements(original), statements(port)
    count = sum(max(i2 - i1, j2 - j1)
                for tag, i1, i2, j1, j2 in SequenceMatcher(
                    None, theirs, ours, autojunk=False).get_opcodes() if tag != "equal")
    return len(theirs), count


def main(arguments: list[str]) -> int:
    """Print one line per program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="programs and ports, named with _gtensor")
    folder = parser.parse_args(arguments).folder
    ports = sorted(folder.glob(f"*{PORT}.py"))
    if not ports:
        print(f"{folder} has no program whose name ends with {PORT}; wanted ports beside programs",
              file=sys.stderr)
        return 2
    for port in ports:
        original = port.with_name(port.name.replace(PORT, ""))
        count, differ = changed(original.read_text(), port.read_text())
        print(f"{original.name:30} {differ:4} of {count:4} statements differ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
