"""What an op's definition says of its work: bytes read and written, floating point operations.

Each array that a path is given or returns counts once, whatever a kernel reads again; what only
moves elements reads no more of its first input than it writes. A rule reads
its gradient and what was saved, writes the gradients of the inputs that need one, and computes for
each of these as much as its path did, at most twice as much (PaLM, arXiv 2204.02311, appendix B):
exact for a product of two matrices, a convention for other ops. Operations on masked or padded
elements count. A view does no work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Shapes = Sequence[tuple[int, ...]]


class Work(NamedTuple):
    """Bytes read, bytes written, floating point operations."""

    read: int
    written: int
    flops: int


NOTHING = Work(0, 0, 0)


class PathWork(NamedTuple):
    """What the work of a rule is computed from: its path's place, op, bytes of inputs, shapes."""

    at: int
    name: str
    inputs: Sequence[int]
    shapes: Shapes | None
    work: Work


def path_work(
    op: Any, inputs: Sequence[int], size: int, item: int, extra: int, shapes: Shapes | None
) -> Work:
    """Of a path.

    Args:
        inputs: bytes of its inputs.
        size, item: elements of its output, and the bytes of one.
        extra: bytes of its further outputs.
        shapes: of its inputs and its output, if the definition counts by them.
    """
    if op.view:
        return NOTHING
    flops = _per_element(op) * size if shapes is None else int(op.flops(*shapes))
    written = size * item + extra
    if op.flops == 0 and inputs:  # it selects from its first input, such as rows of a table
        inputs = [min(inputs[0], written), *inputs[1:]]
    return Work(sum(inputs), written, flops)


def rule_work(
    op: Any, given: Sequence[int], mask: int, path: PathWork | None
) -> Work:
    """Of a rule.

    Args:
        given: bytes of its gradient and of what was saved.
        mask: bit i says that input i needs a gradient.
        path: what is known of its path, None if that was not recorded.
    """
    needed = [i for i in range(mask.bit_length()) if mask >> i & 1]
    if path is None or len(path.inputs) <= needed[-1]:
        return Work(sum(given), given[0] * len(needed), 0)
    written = sum(path.inputs[i] for i in needed)
    if op.view and written == given[0]:
        return NOTHING  # a view of the gradient
    if path.shapes is not None:  # a bias takes no product
        needed = [i for i in needed if len(path.shapes[i]) > 1] or needed[:1]
    return Work(sum(given), written, path.work.flops * min(len(needed), 2))


def _per_element(op: Any) -> int:
    if op.flops is not None:
        return int(op.flops)
    return int(getattr(getattr(op.cpu, "made", None), "operations", 1))
