"""Errors of programs that run as several processes."""

from __future__ import annotations


class DistributedError(RuntimeError):
    """The ranks do not fit together, or one of them cannot go on."""


class CollectiveTimeout(DistributedError):
    """A collective was not finished within its time: another rank has not called it."""
