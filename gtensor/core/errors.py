"""The errors of the engine; each message says what was given and what is wanted."""

from __future__ import annotations


class GradientError(RuntimeError):
    """A gradient was asked that cannot be given: consumed graph, overwritten save, missing rule."""


class AnomalyError(GradientError):
    """A NaN appeared in a gradient under `detect_anomaly()`."""
