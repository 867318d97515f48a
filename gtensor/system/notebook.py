"""What notebooks show: small pieces of HTML for `_repr_html_`.

All text is escaped. Text has the notebook's own colour on its own ground, so that a piece can be
read on a light and on a dark one.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import zip_longest

_PLAIN = "margin: 0; padding: 0; background: none; color: inherit"


class Text(str):
    """Text in lines, such as a table: a notebook shows it as `print` does."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return lines(self)


def lines(text: str) -> str:
    """Text as it is, in letters of one width."""
    return f'<pre style="{_PLAIN}; line-height: 1.3">{escape(text)}</pre>'


def titled(title: str, *parts: str) -> str:
    """A line of text over pieces of HTML."""
    return f'<div><div style="opacity: 0.75">{escape(title)}</div>{"".join(parts)}</div>'


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], colors: Sequence[str] = ()
) -> str:
    """A table of text: the first column on the left, the others on the right.

    `colors` has one per row, as CSS has them, of a square before the row; or none.
    """
    def row(cells: Sequence[str], kind: str, square: str = "") -> str:
        return "<tr>" + "".join(
            f'<{kind} style="text-align: {"right" if i else "left"}; padding: 0 0.5em">'
            f"{'' if i else square}{escape(cell)}</{kind}>" for i, cell in enumerate(cells)
        ) + "</tr>"

    squares = [f'<span style="color: {escape(color)}">&#9632;</span> ' for color in colors]
    body = [row(cells, "td", square) for cells, square in zip_longest(rows, squares, fillvalue="")]
    return f"<table>{row(heads, 'th')}{''.join(body)}</table>"


def tree(line: str, fact: str, branches: Sequence[str], open: bool) -> str:
    """A line with a fact about it, over what is below it, which can be folded away."""
    head = f'{escape(line)} <span style="opacity: 0.6">{escape(fact)}</span>'
    if not branches:
        return f'<div style="margin-left: 1em">{head}</div>'
    return (f'<details style="margin-left: 1em"{" open" * open}><summary>{head}</summary>'
            f'{"".join(branches)}</details>')


def areas(columns: Sequence[float], rows: Sequence[Sequence[float]], colors: Sequence[str]) -> str:
    """Step curves stacked on each other as a picture, 480 by 90 points.

    Args:
        columns: where each step begins, rising.
        rows: per curve its height from each of these places on.
        colors: of the curves, as CSS has them.
    """
    width, height = 480, 90
    ends = [*columns[1:], columns[-1]]
    across = width / max(columns[-1] - columns[0], 1e-12)
    up = height / max([1e-12, *map(sum, zip(*rows, strict=True))])
    base = [0.0] * len(columns)
    drawn = []
    for row, color in zip(rows, colors, strict=True):
        top = [low + high for low, high in zip(base, row, strict=True)]
        steps = [f"{(x - columns[0]) * across:.1f},{height - y * up:.1f}"
                 for level, turn in ((top, 1), (base, -1))
                 for begin, end, y in list(zip(columns, ends, level, strict=True))[::turn]
                 for x in (begin, end)[::turn]]
        drawn.append(f'<polygon fill="{escape(color)}" points="{" ".join(steps)}"/>')
        base = top
    return (f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'style="display: block">{"".join(drawn)}</svg>')
