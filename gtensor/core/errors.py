"""The errors of the engine; each message says what was given and what is wanted."""

from __future__ import annotations

from typing import NoReturn


class GradientError(RuntimeError):
    """A gradient was asked that cannot be given: consumed graph, overwritten save, missing rule."""


class AnomalyError(GradientError):
    """A NaN appeared in a gradient under `detect_anomaly()`."""


class ConsumedError(RuntimeError):
    """A tensor was used whose memory an op took over, as in-place batch norm does."""


def refuse_complex(op_name: str) -> NoReturn:
    """A rule that was not written for complex values would give a gradient that looks right."""
    raise GradientError(f"{op_name} has no derivative for complex values; detach() its input to "
                        "treat it as a constant")
