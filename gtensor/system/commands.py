"""Commands that gtensor starts for a user: whether there is one, and which program it is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence


def found_command(words: Sequence[str], of: str, example: str) -> list[str]:
    """The command; `python` and `gtensor` are this environment's, which may not be on the path.

    Args:
        of, example: what was given the command, and how it is used.

    Raises ValueError, in one sentence, for none, or one that is not found.
    """
    if not words:
        raise ValueError(f"{of} was given no command; wanted one, such as `{example}`")
    first, *rest = words
    own = {"python": [sys.executable], "gtensor": [sys.executable, "-m", "gtensor"]}
    if first not in own and shutil.which(first) is None:
        raise ValueError(f"{of} was given the command {first!r}, which was not found; wanted one "
                         "that the shell finds")
    return [*own.get(first, [first]), *rest]
