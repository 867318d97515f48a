"""Mutations of the rules of recurrent layers and of `linear_scan`; see `plants.py`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from gtensor.ops.recurrent import gru, lstm, sequences
from gtensor.ops.scan import linear_scan

from .plants import Context


class _MadeForRead(sequences.Places):
    def __init__(self, steps: int, reverse: bool) -> None:
        super().__init__(steps, reverse)
        self.read = self.made


def states_after_the_steps() -> Context:
    """the gradient of the recurrent weight takes the states that the steps make"""
    return patch.object(lstm, "Places", _MadeForRead)


def state_without_a_tangent() -> Context:
    """the tangent of a GRU leaves out what the recurrent weight moves"""
    whole = sequences.affine_tangent

    def partly(ns: Any, primals: Any, tangents: Any, axes: int) -> Any:
        dx, dweight, dbias = tangents
        return whole(ns, primals, (dx, dweight if axes == 3 else None, dbias), axes)

    return patch.object(gru, "affine_tangent", partly)


def slopes_not_differentiated() -> Context:
    """the recorded gradient of an LSTM takes the slopes of the gates as constants"""
    slopes = lstm._slopes

    def detached(gates: list[Any]) -> list[Any]:
        return [slope.detach() if hasattr(slope, "detach") else slope for slope in slopes(gates)]

    return patch.object(lstm, "_slopes", detached)


def scan_with_the_state_after() -> Context:
    """the rules of linear_scan multiply a change of the factor by the state after the step"""
    return patch.object(linear_scan, "_earlier", lambda ns, h, initial, reverse: h)


def scan_without_the_factors_history() -> Context:
    """the recorded gradient of linear_scan takes the factors as constants"""
    recorded = linear_scan._grad_recorded

    def detached(g: Any, a: Any, *rest: Any, **params: Any) -> Any:
        return recorded(g, a.detach(), *rest, **params)

    return patch.object(linear_scan, "_grad_recorded", detached)
