"""The moving average of weights: one pass over all of them, in place."""

from __future__ import annotations

from gtensor.ops.define.updates import Update, update_op

_average = Update("average", lambda ns, average, value, *, weight: average + weight * (
    value - average), quiet=True)
average = update_op(_average, "average += weight * (value - average), in place; the average's "
                    "dtype is float32 or wider.")
