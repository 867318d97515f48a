"""Writes of many tensors by one call of an op, or by several: the updates of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.run.writable import (
    check_writable,
    count_write,
    overlapping,
    refuse_traced,
    same_layout,
)
from gtensor.engine.tape.execute import execute
from gtensor.engine.tape.levels import Traced
from gtensor.engine.tape.op import Op
from gtensor.system.bus import ListenerError
from gtensor.system.interrupts import undivided

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Array, Params


class Write(NamedTuple):
    """A call of an op that overwrites `targets`, tensors of one device; see `write_all`."""

    op: Op
    targets: Sequence[Tensor]
    values: Sequence[Tensor]
    params: Params


def write_all(writes: Sequence[Write], count: Callable[[], object] | None = None) -> None:
    """Overwrite the tensors of all writes, or of none; then call `count`, which counts them.

    A path gets the arrays of `targets` and `values`, and the targets' as `out`. The caller has
    checked shapes and dtypes, and records no ops.

    Before the first write, all tensors are checked, and all paths of the CPU are given the memory
    that they need: `Op.asks` returns their parameter `work`. From the first write to the end of
    `count` an interrupt waits. A listener's error at the end of an op is raised after all that.
    """
    ready = [*starmap(_checked, writes)]
    heard_error = None
    with undivided():
        for op, targets, device, arrays, params in ready:
            refused = False
            try:
                execute(op, device, arrays, params)
            except ListenerError as error:
                heard_error = error
            except (IndexError, TypeError, ValueError):  # a path raises these before it writes
                refused = True
                raise
            finally:
                if not refused:
                    for target in targets:
                        count_write(target)
        if count is not None:
            count()
        if heard_error is not None:
            try:
                raise heard_error
            finally:
                del heard_error  # its traceback refers to this frame


def _checked(
    op: Op, targets: Sequence[Tensor], values: Sequence[Tensor], params: Params
) -> tuple[Op, Sequence[Tensor], Device, list[Array], Params]:
    """A write with its device, the arrays and the parameters of its path: all that may fail."""
    device = targets[0]._device
    outputs: list[Array] = []
    given: list[Array] = []
    for tensors, arrays in ((targets, outputs), (values, given)):
        for tensor in tensors:
            if isinstance(tensor, Traced):
                refuse_traced(tensor, op.name)
            if tensor._version != tensor._storage.version:
                tensor._check_version(op.name)
            arrays.append(tensor._array)
    for array in outputs:
        if 0 in array.strides or not getattr(array.flags, "writeable", True):
            check_writable(op.name, array)
    params = {**params, "out": tuple(outputs)}
    if device.type == "cpu":  # on CUDA the update looks for all overlaps at once
        for i, (a, g) in enumerate(zip(outputs, given, strict=False)):
            if np.may_share_memory(a, g) and overlapping(device, a, g) and not same_layout(a, g):
                given[i] = device.copy(g, label=op.name)
        if op.asks is not None:
            params["work"] = op.asks(*outputs, *given, **params)
    return op, targets, device, outputs + given, params
