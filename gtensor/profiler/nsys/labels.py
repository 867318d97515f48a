"""What ranges of the domain `gtensor` say: labels as `ranges.Ranges` writes them, read back.

| label | category | it is |
|---|---|---|
| `Net.first linear forward`, `sum backward` | forward, backward, optimizer | an op |
| `Net.first` | forward, backward | a module |
| `backward`, `SGD update` | backward, optimizer | a phase |
| anything | data, communication, graph, memory, user | a range of that kind |
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OP = re.compile(r"(?:(\S+) )?(\S+) (forward|backward)(?: [(].*)?")
_PHASES = {"forward": "forward", "backward": "backward", "optimizer": "update", "": ""}


class Label(NamedTuple):
    """What stands behind a range.

    Attributes:
        name: an op and its phase, as in the tables of profiles; else the label.
        module: the dotted path of the op's module, or the module itself, "" if there is none.
        is_op: whether it is an op.
    """

    name: str
    module: str
    is_op: bool


def parsed(text: str, category: str) -> Label:
    """A label of a category, which is "" if the export does not name it."""
    if category not in _PHASES:
        return Label(text, "", False)
    found = _OP.fullmatch(text)
    if found is not None:
        module, op, path = found.groups()
        phase = "backward" if path == "backward" else _PHASES[category] or path
        return Label(f"{op} {phase}", module or "", True)
    is_module = category in ("forward", "backward") and text != "backward"
    return Label(text, text if is_module else "", False)
