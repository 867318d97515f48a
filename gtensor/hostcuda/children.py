"""Installs the host device in Python processes that a program on one starts.

Their environment has the settings, and as the first folder on PYTHONPATH one whose `sitecustomize`
installs the host device when the interpreter starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

VARIABLE = "GTENSOR_HOSTCUDA"
_SITE = Path(__file__).parent / "site"


def inherit(environment: MutableMapping[str, str], settings: Mapping[str, Any]) -> None:
    """Let Python processes with this environment start with `install(**settings)`."""
    environment[VARIABLE] = json.dumps(dict(settings))
    present = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([str(_SITE), *filter(None, present)]))


def settings() -> dict[str, Any] | None:
    """The settings that this process was started with, None without any."""
    given = os.environ.get(VARIABLE)
    return None if given is None else json.loads(given)
