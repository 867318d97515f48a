"""What starts a walk and takes its results: `Tensor.backward`, `gradients` for `gtensor.func`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.context import (
    grad_enabled,
    record_ops,
)
from gtensor.engine.handle.errors import GradientError, LevelError
from gtensor.engine.handle.namespaces import public, recorded
from gtensor.engine.handle.node import CONSUMED, Leaf, Node
from gtensor.engine.handle.tensor import Tensor, check_like, wrap
from gtensor.engine.tape.execute import run_aside
from gtensor.engine.tape.record import Record
from gtensor.engine.walk.slots import RawStep, RecordedStep, commits
from gtensor.engine.walk.walk import leading_to, reached, refusal, walk
from gtensor.system.bus import bus, phase
from gtensor.system.bus import here as scope

if TYPE_CHECKING:
    from types import CodeType


_retained, _collector, _stored = map(attrgetter, ("retain", "collector", "stored"))
_committing = False  # the thread that holds `commits` is in the middle of a commit


def backward(
    root: Tensor, grad: Tensor | None, create_graph: bool, keep: bool, batched: bool
) -> None:
    """See `Tensor.backward`."""
    if bus.listeners and scope.phase != "backward":
        with phase("backward"):
            return backward(root, grad, create_graph, keep, batched)
    node = root._tracked_node("backward()")
    seed = _seed(node, grad, batched)
    records, leaves = reached([node])
    kept = [*leaves, *filter(_retained, records)]
    if batched:
        _check_batched(kept, seed.shape[0], create_graph)
    step = _step(node, None, create_graph, keep, batched)
    if any(map(_collector, leaves)):
        step.collecting = _collecting(leaves, create_graph, batched)
    if step.collecting is None:
        if type(step) is RawStep and not (bus.gradients or bus.leaves):
            step.add_in_place(leaves, records)
        try:
            grads = walk([(node, seed)], records, kept, step)
            _commit(kept, grads, create_graph)
        except BaseException as error:  # undone
            _put_back(step, error)
            raise
    else:
        kept, grads = _collect([(node, seed)], records, kept, step)
    if any(map(_stored, kept)):
        for node, stored in zip(kept, grads, strict=True):
            if node.stored and stored is not None:
                for hook in [*node.stored.values()]:
                    hook()


def _collect(
    seeds: list[tuple[Node, Tensor]], records: list[Record], kept: list[Node], step: Any
) -> tuple[list[Node], list[Tensor | None]]:
    """A walk whose leaves have collectors, which say what gradients are stored.

    Returns the nodes, and what the walk gave each.
    """
    try:
        grads = walk(seeds, records, kept, step)
        final = step.collecting.finish()
        walked = {node: grad for node, grad in zip(kept, grads, strict=True) if node not in final}
        _commit([*walked], [*walked.values()], False, final)
        return [*walked, *final], [*walked.values(), *final.values()]
    except BaseException:  # undone
        step.collecting.cancel()
        raise


public.backward = backward  # Tensor's method calls this: tensor.py cannot import it


def gradients(
    outputs: Sequence[Tensor],
    targets: Sequence[Node],
    grad_outputs: Sequence[Tensor | None],
    create_graph: bool,
    keep: bool,
    batched: bool = False,
) -> list[Tensor | None]:
    """Gradients of the outputs' sum at the target nodes, None if unused; writes no `.grad`.

    If `batched`, N at once: the gradients given and found are stacks along a first axis.
    """
    if bus.listeners and scope.phase != "backward":
        with phase("backward"):
            return gradients(outputs, targets, grad_outputs, create_graph, keep, batched)
    seeds = []
    for output, grad in zip(outputs, grad_outputs, strict=True):
        node = root_node(output, "grad()")
        seeds.append((node, _seed(node, grad, batched)))
    records, leaves = reached([node for node, _ in seeds])
    wanted = leading_to(set(targets), records)
    some = not wanted.issuperset(leaves) or not wanted.issuperset(records)
    for record in records:  # checked last: another thread may be consuming them
        if record.state == CONSUMED:  # its parents are cleared, so a path to a target may be lost
            raise GradientError(refusal(record))
    if some:
        records = [r for r in records if r in wanted]
    step = _step(seeds[0][0], wanted, create_graph, keep, batched)
    step.prunes = some
    return walk(seeds, records, targets, step)


def _step(
    node: Node, wanted: set[Node] | None, create_graph: bool, keep: bool, batched: bool
) -> Any:
    """What the rules of a walk from that node see."""
    step: Any = None
    if batched:
        from gtensor.engine.walk.stacked import StackedStep

        step = StackedStep(wanted)
    elif node.level is not None and not create_graph:
        step = node.level.step(wanted) or RecordedStep(wanted)
    else:
        step = RecordedStep(wanted) if create_graph else RawStep(wanted)
    step.level, step.create_graph, step.keep = node.level, create_graph, keep
    if bus.listeners and scope.recorder is not None:
        scope.recorder.listen(step)
    return step


def _collecting(leaves: list[Node], create_graph: bool, batched: bool) -> Any:
    """The collectors, told that a walk begins."""
    from gtensor.engine.walk.complete import collecting

    return collecting(leaves, create_graph, batched)


def depends_on_others(output: Node, own: Sequence[Node]) -> bool:
    """Whether the output depends on a leaf that is not in `own`."""
    _, leaves = reached([output])
    return not set(own).issuperset(leaves)


def root_node(tensor: Tensor, reader: str) -> Node:
    """The node of a tensor at which a gradient starts or ends."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{reader} was given {type(tensor).__name__} where a gradient starts or "
                        "ends; wanted a Tensor")
    return tensor._tracked_node(reader)


def _seed(node: Node, grad: Tensor | None, batched: bool) -> Tensor:
    """The gradient that the walk starts from: the caller's, or 1 for one element."""
    if batched:
        return _stacked_seed(node, grad)
    if grad is None:
        device, shape, dtype = node.device, node.shape, node.dtype
        if prod(shape) != 1:
            raise GradientError(f"backward() of a tensor of shape {shape} without a gradient; "
                                "give one of that shape, or reduce the tensor to one element first")
        if dtype.kind == "c":
            raise GradientError("backward() of a complex tensor without a gradient; give one, or "
                                "take a real function of the tensor first")
        if bus.listeners:
            scope.module, scope.instruction = node.module, _instruction(node)
        return wrap(run_aside("gradient", device, device.ones, shape, dtype), device)
    if not isinstance(grad, Tensor):
        raise TypeError(f"the gradient given is {type(grad).__name__}; wanted a Tensor")
    array = grad._array
    if (grad._device is not node.device or array.dtype is not node.dtype
            or array.shape != node.shape):
        check_like("a gradient", grad, node)
    return grad


def _instruction(node: Node) -> tuple[CodeType, int] | None:
    """The user's, which recorded the node."""
    return (node.code, node.lasti) if isinstance(node, Record) else None


def _stacked_seed(node: Node, grad: Tensor | None) -> Tensor:
    """N gradients along a first axis."""
    if not isinstance(grad, Tensor) or not grad.ndim:
        given = type(grad).__name__ if not isinstance(grad, Tensor) else "one of shape ()"
        raise TypeError(f"a batched backward() was given {given} as gradients; wanted a Tensor of "
                        f"shape (N, ...) with N gradients of shape {node.shape}")
    if node.level is not None:
        raise LevelError("a batched backward() was called within a transform; wanted vmap() there")
    check_like("a stack of gradients", grad, Leaf(
        (grad.shape[0], *node.shape), node.dtype, node.device))
    return grad


def _check_batched(kept: Sequence[Node], count: int, create_graph: bool) -> None:
    """Raise unless N gradients can be added to each `.grad`."""
    if create_graph:
        raise GradientError("backward(batched=True) was given create_graph=True; wanted vmap() of "
                            "a pullback for gradients that are differentiated")
    for node in kept:
        if node.grad is not None and node.grad.shape != (count, *node.shape):
            raise GradientError(
                f"a leaf of shape {node.shape} has a gradient of shape {node.grad.shape}, to which "
                f"{count} gradients would be added; set its .grad to None first")


def _commit(
    kept: Sequence[Node], grads: Sequence[Tensor | None], create_graph: bool,
    final: Mapping[Node, Tensor] = MappingProxyType({}),
) -> None:
    """Add the walk's gradients to `.grad`, and store those that are final.

    All sums are computed first; one C call then stores them, so an interrupt cannot store a part.
    """
    global _committing
    mode = grad_enabled()
    recorded_walk = create_graph or bool(kept) and kept[0].level is not None
    with commits:
        if _committing:
            raise GradientError("backward() was called in the middle of another one's last step, "
                                "which writes `.grad`, by a finalizer or a signal handler of its "
                                "thread; wanted no backward() there")
        try:
            _committing = True
            if recorded_walk:
                record_ops(mode or create_graph)
            nodes, totals = [*final], [*final.values()]
            for node, grad in zip(kept, grads, strict=True):
                if grad is None:
                    continue
                node = node.retain if isinstance(node.retain, Node) else node
                if recorded_walk:  # its gradient may be the seed's, or that of two leaves
                    grad = (recorded.clone(grad) if node.grad is None
                            else recorded.add(grad, node.grad))
                elif node.grad is not None:
                    grad = _added(grad, node.grad)
                nodes.append(node)
                totals.append(grad)
            if bus.listeners and scope.recorder is not None:
                scope.recorder.stores(nodes, totals, walked=True)
            deque(map(setattr, nodes, repeat("grad"), totals), 0)
        finally:
            _committing = False
            if recorded_walk:
                record_ops(mode)


def _put_back(step: Any, error: BaseException) -> None:
    """A walk that has added to these leaves' `.grad` in place raises: they get it back.

    With what they had before, if there are copies; else a note to the error names the leaves.
    """
    added = []
    for node, (grad, before) in step.adopted.items():
        with commits:
            present = node.grad
            if present is not None and present is not grad and present._array is grad._array:
                continue  # an interrupt came when all was stored
            if before is not None:
                run_aside("gradient", node.device, node.device.xp.copyto, grad._array, before)
            else:
                added.append(f"{node.shape} {node.dtype}")
            if present is not None and present is not grad:  # another walk has stored one meanwhile
                grad = _added(grad, present)
            node.grad = grad
    step.adopted = {}  # a kept traceback would keep them alive
    if added:
        error.add_note(f"the .grad of {len(added)} leaves has a part of this walk's gradient: of "
                       f"shape {', '.join(added)}; set it to None, or run with GTENSOR_DEBUG=1, "
                       "which keeps copies")


def _added(fresh: Tensor, present: Tensor) -> Tensor:
    """The sum, written into `fresh`, which has no other holder."""
    run_aside("gradient", fresh._device, fresh._device.xp.add, fresh._array, present._array,
              out=fresh._array)
    return fresh
