"""Mutations of the passes over captured steps."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from gtensor.execution.steps import flow, fusing, pieces, totals

Context = AbstractContextManager[Any]


def composed_formulas_simplified() -> Context:
    """ops that are put together are simplified as one formula"""
    right = pieces.composed
    return patch.object(fusing, "composed", lambda members, outputs, relaxed=False: right(
        members, outputs, True))


def writes_before_reads() -> Context:
    """a call that writes does not wait for the reads of what was there before"""
    return patch.object(flow, "_reads_since", lambda read, root: set())


def sums_parted_anywhere() -> Context:
    """a sum is that of a third and of the rest"""
    return patch.object(totals, "_half", lambda size: size // 3)
