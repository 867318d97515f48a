"""What an op's definition says of its work: bytes read and written, floating point operations.

Each array that a path is given or returns counts once, whatever a kernel reads again. A rule reads
its gradient and what was saved, writes the gradients of the inputs that need one, and computes for
each of these as much as its path did: exact for a product, a convention for other ops (as in PaLM,
arXiv 2204.02311, appendix B, where a backward pass counts as two forward passes). Operations on
masked or padded elements count. A view does no work.
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
    return Work(sum(inputs), size * item + extra, flops)


def rule_work(
    op: Any, given: Sequence[int], mask: int, inputs: Sequence[int] | None, path: Work | None
) -> Work:
    """Of a rule.

    Args:
        given: bytes of its gradient and of what was saved.
        mask: bit i says that input i needs a gradient.
        inputs: bytes of the inputs of its path, None if it is unknown.
        path: the work of the path.
    """
    needed = [i for i in range(mask.bit_length()) if mask >> i & 1]
    written = (given[0] * len(needed) if inputs is None or len(inputs) <= needed[-1]
               else sum(inputs[i] for i in needed))
    if op.view and written == given[0]:
        return NOTHING  # a view of the gradient
    return Work(sum(given), written, 0 if path is None else path.flops * len(needed))


def _per_element(op: Any) -> int:
    if op.flops is not None:
        return int(op.flops)
    return int(getattr(getattr(op.cpu, "formula", None), "operations", 1))
