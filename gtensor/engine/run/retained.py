"""Gradients that are kept of tensors which are written through a view of them.

`retain_grad()` asks for the gradient of a tensor's values as they are when the walk begins. After
`v = y[0]; v *= 2` the tape leads from v's new values to the op that wrote them, past y. So v's
new record becomes a view of a record that stands for all of y, written: the view's backward rule
puts v's gradient in its place, and there it is kept for y.

        y (before) --slice--> v (before) --multiply--> v's part --view_written--> y --slice--> v
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from gtensor.engine.handle.node import Node
from gtensor.engine.tape.op import Op
from gtensor.engine.tape.record import Record, new_record

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.namespaces import Namespace
    from gtensor.engine.handle.tensor import Tensor
    from gtensor.engine.walk.typing import Step


def _view_written(ns: Namespace, step: Step, g: Array) -> None:
    """The part of the gradient that belongs to what was written; all else came from no reader."""
    part: Any = g
    for name, params in step.params["views"]:
        part = getattr(ns, name)(part, **params)
    step.give(0, part)


_VIEW_WRITTEN = Op(
    "view_written", inputs="x", cpu=lambda x: x, gpu=lambda x: x, backward=_view_written,
    tangent=None, samples=None, doc="All of a tensor, a view of which was written. Only recorded.",
)


def node_after_write(target: Tensor, node: Node) -> Node:
    """The node of the handle's new values, whose own is `node`; kept gradients go with them."""
    before = target._node
    if before is None:
        return node
    if isinstance(before, Record) and before.op.view:
        node = _behind_views(target, before, node)
    if _kept_for(before) is not None:
        _keep(before, node, node)
    return node


def _kept_for(node: Node) -> Node | None:
    """The node of the handle whose gradient is kept at `node`, or at a later record for it."""
    if node.retain:
        return node.retain if isinstance(node.retain, Node) else node
    return node if node.heir is not None and node.heir() is not None else None


def _keep(old: Node, new: Node, home: Node) -> None:
    """Keep the gradient at `new`, for the handle that has the node `home`, and not before it."""
    former = _kept_for(old)
    assert former is not None
    heir = None if former.heir is None else former.heir()
    if heir is not None:
        heir.retain = False
    old.retain = former.retain = False
    new.retain = True if home is new else home
    former.heir = None if home is new else weakref.ref(new)


def _behind_views(target: Tensor, before: Record, node: Node) -> Node:
    """`node`, or a view of a record for the tensors whose gradients are kept and that it views."""
    views, found = [before], 0
    while views[-1].parents and (parent := views[-1].parents[0]) is not None:
        if _kept_for(parent) is not None and _shares(target, parent):
            found = len(views)
        if not (isinstance(parent, Record) and parent.op.view):
            break
        views.append(parent)
    if not found:
        return node
    views = views[found - 1::-1]  # from the tensor to the written view
    base: Any = views[0].parents[0]  # not None, as found
    params = {"views": tuple((view.op.name, view.params) for view in views)}
    current = new_record(
        _VIEW_WRITTEN, (node,), 1, (), (), params, base, target._device)
    _keep(base, current, _home(base))
    for view in views:
        like: Any = view  # of which only shape and dtype are read
        current = new_record(
            view.op, (current,), 1, view.saved, view.guards, view.params, like, target._device)
        if view is not before and _kept_for(view) is not None and _shares(target, view):
            _keep(view, current, _home(view))
    return current


def _home(node: Node) -> Node:
    home = _kept_for(node)
    assert home is not None
    return home


def _shares(target: Tensor, node: Node) -> bool:
    """Whether the tensor for which `node` keeps a gradient lives, and in the target's memory."""
    home = _home(node)
    handles = [ref() for ref in list(target._storage.handles or ())]
    return any(h is not None and h._node is home for h in handles)  # type: ignore[attr-defined]
