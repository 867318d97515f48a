"""Mutations of batch rules, products, checkpoints, kept values and sums; see `plants.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from gtensor.engine.handle.context import STATE
from gtensor.engine.handle.storage import Storage
from gtensor.engine.run import checkpointing
from gtensor.engine.tape import op
from gtensor.ops.define import sums
from gtensor.ops.linalg import matrix_products
from gtensor.ops.norms import batching, row_norm_paths

from .plants import Context


def statistics_are_constants() -> Context:
    """the batch rule of batch norm takes the statistics of each example for constants"""
    right = batching._own_statistics

    def own(ns: Any, x: Any, mapped: bool) -> Any:
        found = right(ns, x, mapped)
        return tuple(a.detach() for a in found) if mapped else found
    return patch.object(batching, "_own_statistics", own)


def checkpoint_within_the_walks_levels() -> Context:
    """a checkpointed function runs again on the levels of the transforms that run its walk"""
    @contextmanager
    def recomputing() -> Iterator[None]:
        before, STATE.recomputing = STATE.recomputing, True
        try:
            yield
        finally:
            STATE.recomputing = before
    return patch.object(checkpointing, "recomputing", recomputing)


def arguments_unchecked() -> Context:
    """what a rule takes is not read at its definition"""
    return patch.object(op, "check_takes", lambda *given: None)


def exports_forgotten() -> Context:
    """memory that left is marked, and the arrays that left are not remembered"""
    def leave(storage: Storage, lender: object) -> None:
        storage.exported = True
    return patch.object(Storage, "leave", leave)


def exports_remembered_for_ever() -> Context:
    """an array that left counts as alive after it has died"""
    right = Storage.leave
    return patch.object(Storage, "leave", lambda storage, lender: right(storage, None))


def sums_in_one_total() -> Context:
    """a sum over leading axes adds its terms in the few totals of one product"""
    return patch.object(sums, "_side_by_side", lambda terms, width, most: (
        min(terms, len(sums._ONES["f"])), 1))


def rounded_means_stay() -> Context:
    """what rounding the mean of a row leaves of equal numbers is divided by its own size"""
    return patch.object(row_norm_paths, "recentre", lambda centred, means, squares: None)


def single_product_in_parts() -> Context:
    """a product without an axis to sum over is summed in parts of its longest one"""
    return patch.object(matrix_products, "_FEW", 0)
