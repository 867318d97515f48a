"""The errors of the engine; each message says what was given and what is wanted."""

from __future__ import annotations

import sys
from typing import NoReturn

from gtensor.system.source_line import place, user_frame


class GradientError(RuntimeError):
    """A gradient cannot be computed: consumed graph, overwritten saved array, missing rule."""


class AnomalyError(GradientError):
    """A NaN appeared in a gradient under `detect_anomaly()`."""


class ConsumedError(RuntimeError):
    """A tensor was used whose memory an op took, as in-place batch norm does."""


class LevelError(RuntimeError):
    """A value within a transform (`jvp`, `vmap`) left it, or was asked for memory.

    The message ends with the user's line, which is one of the function that was transformed.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        frame = user_frame(sys._getframe(1))
        self.line = place(frame.f_code, frame.f_lasti)

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.line})"


class SizeError(LevelError):
    """Under `vmap` a result would have another size for each example, by its values."""


def refuse_complex(op_name: str) -> NoReturn:
    """Raise GradientError: a rule not written for complex values would give a wrong gradient."""
    raise GradientError(f"{op_name} has no derivative for complex values; detach() its input to "
                        "treat it as a constant")
