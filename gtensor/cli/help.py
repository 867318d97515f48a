"""How the command's help is laid out, and what a shell completes."""

from __future__ import annotations

import argparse
import re
import textwrap


class Help(argparse.RawDescriptionHelpFormatter):
    """Lines of a description and of examples stay lines, each of them at the terminal's width."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(_wrapped(line, width) for line in text.splitlines())


def _wrapped(line: str, width: int) -> str:
    """A line, of which the rest is indented further than its beginning, as a list's; of two
    columns, as the second one.

    Of an example that has no room, what it does follows in a line of its own.
    """
    command, mark, comment = line.partition("  # ")
    lead = " " * (len(line) - len(line.lstrip()))
    if command.strip() and mark and len(line) > width:
        return f"{_wrapped(command.rstrip(), width)}\n{_wrapped(f'{lead}    # {comment}', width)}"
    column = re.match(r" +\S+  +", line)
    indent = " " * len(column[0]) if column else lead + " " * 4 * bool(lead)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False,
                         break_on_hyphens=False)
