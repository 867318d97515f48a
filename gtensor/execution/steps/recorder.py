"""The recorder: what a step does, as calls of paths on numbered values.

It listens while the step runs as always. Forward paths come from the event bus, what backward rules
compute comes through namespaces that note each call, sums of gradients likewise. What reads or
changes Python's state (an optimizer's step, the numbers that a dropout draws) is one call of that
function, marked by `engine.handle.context.again`, of which nothing is recorded but the results.
What the ranks do together is told by `exchange`, or happens within a path: such calls are effects,
which no pass drops, doubles or reorders.

An array is known by its memory's owner and its layout, for as long as the owner lives: weak
references keep nothing alive. Memory that no call has made is an argument's, or external: it must
be the same in the next recording, else it was made inside by code that no recorder can see.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import Device, device_of, owner
from gtensor.creation.generators import repeating
from gtensor.engine.handle.arrays import layout
from gtensor.engine.handle.context import EXCHANGES
from gtensor.engine.handle.namespaces import raw
from gtensor.engine.handle.node import Node, next_seq
from gtensor.engine.handle.tensor import Tensor
from gtensor.engine.walk.slots import RawStep
from gtensor.engine.walk.stacked import StackedNamespace, StackedStep
from gtensor.system.bus import here
from gtensor.system.source_line import place, user_frame

if TYPE_CHECKING:
    from gtensor.backend.typing import Array
    from gtensor.engine.handle.storage import Storage
    from gtensor.system.bus import OpEvent

_SHOWN = 8  # numbers of a constant
_SMALL_INTEGERS = 1 << 32  # Python shares small ones, so they do not tell where they come from


_NOWHERE: tuple[CodeType, int] = compile("", "", "exec"), 0


class CaptureError(RuntimeError):
    """A step cannot be captured.

    If it has run, as it always would, `result` is what it returned; else it is None.
    """

    result: Any = None


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the program, by number."""

    number: int


@dataclass(eq=False, slots=True)
class Call:
    """A call of the program.

    `args` and `params` have Values where the call had arrays, or integers that were drawn. `made`
    has the numbers of its results, None for what is no array; of a call that wrote into an array it
    was given, that array's. `asarray`: the results that NumPy returned as scalars.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    params: dict[str, Any]
    made: tuple[int | None, ...]
    several: bool  # whether the result is a tuple
    asarray: frozenset[int]
    device: Device | None
    where: tuple[CodeType, int]
    op: Any = None  # the definition, of a forward path
    within: tuple[str, str] = "", ""  # the phase and the running module, as events have them
    host: bool = False  # a function that is called again: its results are Tensors and integers
    kind: str = ""  # EXCHANGES, or of such a function: see `engine.handle.context.again`
    itself: bool = False  # whether the call of the step itself ran an op, not one within it

    def place(self) -> str:
        """The user's line."""
        return place(*self.where)


@dataclass(eq=False, slots=True)
class Written:
    """A write through a tensor's handle was counted: of an argument, or of a lasting tensor."""

    argument: int | None
    tensor: weakref.ref[Tensor]
    storage: Storage
    where: tuple[CodeType, int]
    itself: bool = True  # whether the argument was, not a view of it

    def lasts(self) -> bool:
        """Whether someone has a handle of the memory, who is to see that it was written."""
        return self.argument is not None or self.tensor() is not None or (
            self.storage.shared_beside(None))


@dataclass(eq=False, slots=True)
class Stored:
    """Gradients became the `.grad` of leaves: (node, or the number of an argument; value)."""

    entries: list[tuple[Any, int | None, bool]]  # the third: whether `.grad` was, and must be, None
    where: tuple[CodeType, int]


@dataclass(eq=False, slots=True)
class Root:
    """Memory: `owner` is the array that owns it, `values` the arrays over it by layout.

    `argument` is the first argument that lies in it.
    """

    owner: weakref.ref[Any]
    made: bool
    argument: int | None
    values: dict[Any, int] = field(default_factory=dict)
    on_host: bool = False
    gradient: bool = False  # a `.grad` of before the step
    stored: bool = False  # a `.grad` that a backward pass of the step has made, as in a bucket


@dataclass(eq=False, slots=True)
class Facts:
    """What is known of a value: its kind, its memory, shape and dtype."""

    kind: str  # "argument", "external", "made", "object" (an integer, a collective under way)
    shape: tuple[int, ...]
    dtype: np.dtype | None
    root: Root | None
    array: weakref.ref[Any] | None = None  # of an external one
    where: tuple[CodeType, int] = _NOWHERE
    argument: int | None = None  # which one it is
    contiguous: bool = False  # in the order of the axes
    dense: bool = False  # in that order or in the opposite one


_SHAPED_BY_VALUES = {"nonzero", "unique_table", "unique_values"}


class Recorder:
    """A listener that records the step of the thread in which it is `here.recorder`."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        self.calls: list[Call | Written | Stored] = []
        self.values: list[Facts] = []
        self.refusals: list[str] = []
        self.devices: set[Device] = set()  # on which calls have run
        self.first = next_seq()  # nodes of the step have larger numbers
        self.higher = False  # whether rules were recorded as ops, to be differentiated again
        self.caller = 0  # the id of the frame that calls the step
        self._roots: dict[int, Root] = {}
        self._objects: dict[int, tuple[Any, int]] = {}  # id -> the object, its value's number
        self._within = 0  # of how many paths and exchanges this is told
        self._together = False  # whether the ranks have exchanged within
        self._arguments = arguments
        self._nodes = {x._node: i for i, x in enumerate(arguments) if x._node is not None}
        self._cleared: set[Node] = set()  # whose `.grad` the step has written
        self._given = [(x._array, x._node) for x in arguments]
        self._namespaces = {kind: _Noting(self, kind) for kind in raw}
        for i, x in enumerate(arguments):
            array = x._array
            root = self._roots.get(id(owner(array))) or self._root(array, False, argument=i)
            if _key(array) not in root.values:
                self.values[self._value(root, array, "argument")].argument = i
        self.owners = [weakref.ref(owner(x._array)) for x in arguments]
        self.found: dict[Any, Any] = {}  # of leaves and numbers of arguments: see `finds`

    # -- what is told -----------------------------------------------------------------------------

    def op_begins(self, event: OpEvent) -> None:
        """A path is about to run."""
        if here.recorder is self and event.phase == "forward":
            self._within += 1

    def op_ends(self, event: OpEvent) -> None:
        """A path has run; what a rule did was told by its namespace."""
        if here.recorder is not self or event.phase != "forward":
            return
        self._within -= 1
        if event.error is None:
            event.result = self.note(event.op.name, event.function, event.args, event.params,
                                     event.result, event.op)

    def noted(
        self, name: str, path: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        """The result of a path that a rule calls, which is noted."""
        self._within += 1
        try:
            result = path(*args, **params)
        finally:
            self._within -= 1
        return self.note(name, path, args, params, result)

    def exchange(
        self, function: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        """The result of what all ranks do together, which each replay does again.

        It is given arrays in place of tensors then. Its result may be an object that a later one is
        given, such as a collective under way.
        """
        if self._within:  # the path that is running is what replays call
            self._together = True
            return function(*args, **params)
        self._within += 1
        try:
            result = function(*args, **params)
        finally:
            self._within -= 1
        args = [x._array if isinstance(x, Tensor) else x for x in args]
        params = {key: x._array if isinstance(x, Tensor) else x for key, x in params.items()}
        self._together = True
        self.note(function.__qualname__, function, args, params,
                  result._array if isinstance(result, Tensor) else result)
        return result

    def note(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], params: dict[str, Any],
        result: Any, op: Any = None,
    ) -> Any:
        """A call; returns its result, with arrays in place of NumPy's scalars."""
        where = _here()
        if name in _SHAPED_BY_VALUES or name == "gather" and _is_selection(args[1:]):
            self.refuse(f"the shape of the result of {name} depends on values, which differ in "
                        "each call; keep the shape, with gt.where() or a product with the mask")
        given = tuple([self._coded(a) for a in args])
        named = {key: self._coded(a) for key, a in params.items()}
        several = type(result) in (tuple, list)
        results = list(result) if several else [result]
        kind = EXCHANGES if self._together else ""
        self._together = self._together and bool(self._within)  # until the outermost call
        made: list[int | None] = []
        scalars = []
        for i, a in enumerate(results):
            if isinstance(a, np.generic):
                results[i] = a = np.asarray(a)
                scalars.append(i)
            made.append(self._made(a, where) if _is_array(a) else self._object(a, where)
                        if kind and a is not None else None)
        device = next((device_of(a) for a in results if _is_array(a)), None)
        if device is not None and device not in self.devices:
            self.devices.add(device)
        self.calls.append(Call(name, function, given, named, tuple(made), several,
                               frozenset(scalars), device, where, op, (here.phase, here.module),
                               kind=kind, itself=op is not None and _above() == self.caller))
        if not several:
            return results[0]
        return tuple(results) if type(result) is tuple else results

    def host(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a function that replays call again; nothing within it is recorded."""
        from gtensor.func.trees import leaves

        args = [list(a) if isinstance(a, Iterator) else a for a in args]
        for name, x in leaves((args, kwargs)):
            if isinstance(x, Tensor) and self._is_made(x._array):
                self.refuse(f"{function.__qualname__} was given a tensor that the step made "
                            f"({name}); wanted one that lasts, such as a parameter")
        where = _here()
        here.recorder = None
        try:
            result = function(*args, **kwargs)
        finally:
            here.recorder = self
        made: list[int | None] = []
        for _, x in leaves(result):
            if isinstance(x, Tensor):
                made.append(self._made(x._array, where))
                if repeating():
                    self.refuse("numbers were drawn within gt.random.seeded() or a checkpoint; "
                                "draw them before, and pass them as an argument")
            elif type(x) is int and x > _SMALL_INTEGERS:
                if repeating():  # a checkpoint draws its seeds again
                    again = next((n for y, n in self._objects.values() if y == x), None)
                    if again is None:
                        self.refuse("numbers were drawn within gt.random.seeded(); draw them "
                                    "before, and pass them as an argument")
                    else:
                        self._objects[id(x)] = x, again
                        return result
                made.append(self._object(x, where))
            else:
                made.append(None)
        self.calls.append(Call(
            function.__qualname__, function, tuple(args), dict(kwargs), tuple(made), False,
            frozenset(), None, where, within=(here.phase, here.module), host=True,
            kind=function.again))  # type: ignore[attr-defined]
        return result

    def literal(self, data: Any, device: Device, made: Array) -> None:
        """An array was made of Python's numbers: each replay makes it of the same ones."""
        if _is_plain(data):
            values = device.to_numpy(made).copy()
            values.flags.writeable = False
            self.constant(device, values, made)

    def constant(self, device: Device, values: np.ndarray, made: Array) -> None:
        """Numbers, as an array that is never written, were copied to a device."""
        self.note("tensor", copied, (device, Constant(values)), {}, made)

    def wrote(self, tensor: Tensor) -> None:
        """A write through the tensor's handle was counted."""
        root = self._roots.get(id(owner(tensor._array)))
        if root is not None and (root.made or root.stored):
            return  # no one else has this handle
        argument, itself = self.argument_of(tensor), True
        if argument is None and root is not None:
            argument, itself = root.argument, False
        self.calls.append(Written(argument, weakref.ref(tensor), tensor._storage, _here(), itself))

    def stores(
        self, nodes: Sequence[Node], totals: Sequence[Tensor | None], walked: bool = False
    ) -> None:
        """Gradients, or None, are about to become the `.grad` of leaves.

        `walked`: by a backward pass, which has added them to those that were there.
        """
        entries: list[tuple[Any, int | None, bool]] = []
        for node, total in zip(nodes, totals, strict=True):
            own: Any = self._nodes.get(node, node)
            if own is node and node.seq > self.first:
                own = weakref.ref(node)  # made in the step; most often it dies with it
            empty = walked and node.grad is None and node not in self._cleared
            if walked and node.grad is not None:
                self.finds(node, node.grad)
            self._cleared.add(node)
            if total is not None and total._node is not None:
                self.refuse("a gradient with a history was stored in .grad; use gt.grad() for it")
            entries.append((own, None if total is None else self.number(total._array), empty))
            if walked and total is not None:
                self._roots[id(owner(total._array))].stored = True
        self.calls.append(Stored(entries, _here()))

    def finds(self, node: Node, grad: Tensor | None) -> None:
        """The step reads a `.grad` of before it: replays must find the same array, or None.

        After a call of Python's, which may have dropped it, only an array is known to be earlier.
        """
        own: Any = self._nodes.get(node, node)
        if node in self._cleared or own in self.found or own is node and node.seq > self.first:
            return
        if grad is not None:
            self.found[own] = weakref.ref(grad._array)
            root = self._roots.get(id(owner(grad._array)))
            if root is not None:
                root.gradient = True
        elif not any(isinstance(c, Call) and c.host for c in self.calls):
            self.found[own] = None

    def has_stored(self, node: Node) -> bool:
        """Whether the step has stored a leaf's `.grad`.

        To an earlier one it adds in new memory: when it is replayed, there may be a handle of it.
        """
        return node in self._cleared

    def listen(self, step: Any) -> None:
        """A walk begins: its rules compute in namespaces that note what they do."""
        if not isinstance(step, RawStep):
            self.higher = True
            return  # of Tensors, whose ops are told
        step.arrays = step.namespaces = self._namespaces
        if isinstance(step, StackedStep):
            step.namespaces = {kind: StackedNamespace(ns) for kind, ns in step.arrays.items()}

    def read(self, tensor: Tensor, what: str) -> None:
        """Values go to Python."""
        self.refuse(f"{what} of a tensor of shape {tensor.shape}: a replay would go on with the "
                    "value of the recording; return the tensor from the step and read it there, or "
                    "choose with gt.where()")

    def refuse(self, reason: str) -> None:
        """The step cannot be captured; it is said when it has ended."""
        self.refusals.append(f"{place(*_here())}: {reason}")

    # -- values -----------------------------------------------------------------------------------

    def number(self, array: Array) -> int:
        """The number of an array's value; an unknown array is external."""
        own = owner(array)
        root = self._roots.get(id(own))
        if root is None:
            root = self._root(own, made=False)
            root.gradient = any(ref is not None and (found := ref()) is not None
                                and owner(found) is own for ref in self.found.values())
            self._value(root, own, "external")
        found = root.values.get(_key(array))
        if found is None:
            found = self._view(root, array)
        return found

    def _view(self, root: Root, array: Array) -> int:
        """A view that no call has made, such as one of code outside: of the memory's first value.
        """
        (at, shape, strides, dtype), base = _key(array), next(iter(root.values.items()))
        number = self._value(root, array, "view")
        self.calls.append(Call(
            "view", view_at, (Value(base[1]), at - base[0][0], shape, strides, dtype), {},
            (number,), False, frozenset(), device_of(array), _here()))
        return number

    def argument_of(self, tensor: Tensor) -> int | None:
        """The number of the argument that is this very tensor."""
        return next((i for i, x in enumerate(self._arguments) if x is tensor), None)

    def storage_of(self, tensor: Tensor) -> tuple[bool, int | None]:
        """Whether a tensor's memory lasts, and the number of the argument whose memory it is."""
        root = self._roots[id(owner(tensor._array))]
        return not root.made and root.argument is None, root.argument

    def stop(self) -> None:
        """No more is told; nothing here refers to itself any longer, so that it dies in time."""
        self._namespaces.clear()

    def end(self) -> None:
        """The step has returned: its arguments must be as they were, but for their values."""
        if not all(getattr(value, "ended", True) for value, _ in self._objects.values()):
            self.refuse("a collective that the step begins is not waited for in it; wait() for it")
        self._objects.clear()  # a collective refers to its arrays
        self.calls = [c for c in self.calls if not isinstance(c, Written) or c.lasts()]
        for i, (x, (array, node)) in enumerate(zip(self._arguments, self._given, strict=True)):
            if x._array is not array or x._node is not node:
                self.refuse(f"the step gave tensor {i} among its arguments other memory or a "
                            "history, as in-place ops do; clone() or detach() it first")

    def refuse_kept(self, returned: Sequence[int]) -> None:
        """Refuse a step that left a tensor to Python: replays would not make it again."""
        lasting = {id(self.values[n].root) for n in returned}
        for call in self.calls:
            if isinstance(call, Stored):
                lasting |= {id(self.values[n].root) for _, n, _ in call.entries if n is not None}
        for collect in (False, True):
            if collect:
                gc.collect()
            kept = [root for root in [*self._roots.values()]
                    if root.made and id(root) not in lasting]
            if not kept:
                return
        facts = self.values[max(kept[0].values.values())]
        self.refusals.append(
            f"{place(*facts.where)}: a tensor of shape {facts.shape} that was made here is kept "
            "outside of the step; return it instead, or write it into a tensor made before")

    def release(self) -> None:
        """Forget what only recording needs: a kept recording keeps no argument alive."""
        self._arguments, self._given = (), []
        for known in (self._nodes, self._roots):
            known.clear()

    def reason(self) -> str | None:
        """Why the step cannot be captured; None if it can, as far as one recording shows."""
        return self.refusals[0] if self.refusals else None

    def _root(self, array: Array, made: bool, argument: int | None = None) -> Root:
        own = owner(array)
        at = id(own)
        roots = self._roots
        root = Root(weakref.ref(own, lambda _: roots.pop(at, None)), made, argument,
                    on_host=isinstance(own, np.ndarray))
        roots[at] = root
        return root

    def _value(self, root: Root, array: Array, kind: str, where: Any = None) -> int:
        self.values.append(Facts(
            kind, array.shape, array.dtype, root,
            weakref.ref(array) if kind in ("external", "view") else None, where or _here(),
            contiguous=bool(array.flags.c_contiguous), dense=bool(array.flags.forc)))
        root.values[_key(array)] = number = len(self.values) - 1
        return number

    def _made(self, array: Array, where: tuple[CodeType, int]) -> int:
        """The number of a call's result: a new value, or the one of an array it was given."""
        root = self._roots.get(id(owner(array)))
        if root is None:
            root = self._root(array, made=True)
        else:
            known = root.values.get(_key(array))
            if known is not None:
                return known
        return self._value(root, array, "made", where)

    def _object(self, value: Any, where: tuple[CodeType, int]) -> int:
        """The number of a new value that is no array."""
        self.values.append(Facts("object", (), None, None, where=where))
        self._objects[id(value)] = value, len(self.values) - 1
        return len(self.values) - 1

    def _is_made(self, array: Array) -> bool:
        root = self._roots.get(id(owner(array)))
        return root is not None and root.made

    def _coded(self, value: Any) -> Any:
        """What a call was given, with Values in place of arrays."""
        if _is_array(value):
            if isinstance(value, np.ndarray) and not value.ndim and not value.flags.writeable:
                return Constant(value)
            return Value(self.number(value))
        known = self._objects.get(id(value))
        if known is not None:
            return Value(known[1])
        if isinstance(value, (tuple, list)):
            return like(value, [self._coded(item) for item in value])
        if type(value) is dict:
            return {key: self._coded(item) for key, item in value.items()}
        return value


def like(value: Any, items: list[Any]) -> Any:
    """A tuple or list of the same type with other items."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def view_at(
    base: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype
) -> Array:
    """The array so many bytes behind another one's first element."""
    if not isinstance(base, np.ndarray):
        return type(base)(shape, dtype, base.data + offset, strides)
    whole = _Memory()
    whole.base = base
    whole.__array_interface__ = {
        "version": 3, "data": (layout(base)[0] + offset, not base.flags.writeable), "shape": shape,
        "strides": strides, "typestr": dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}"}
    made = np.asarray(whole)
    return made if dtype.isbuiltin == 1 else made.view(dtype)


class _Memory:
    """What NumPy makes an array of, whose base it becomes."""

    base: np.ndarray
    __array_interface__: dict[str, Any]


class Constant:
    """A number, or a list of them, as an array that is never written."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Constant) and self.array.dtype == other.array.dtype
                and self.array.shape == other.array.shape
                and self.array.tobytes() == other.array.tobytes())

    def __hash__(self) -> int:
        return hash(self.array.tobytes())

    def __repr__(self) -> str:
        return repr(self.array.tolist()) if self.array.size <= _SHOWN else (
            f"numbers of shape {self.array.shape}")


class _Noting:
    """A device's raw namespace, each call of which is noted."""

    def __init__(self, recorder: Recorder, kind: str) -> None:
        self._recorder = recorder
        self._raw: Any = raw[kind]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        path, recorder = getattr(self._raw, name), self._recorder

        def noted(*args: Any, **params: Any) -> Any:
            if here.recorder is not recorder:
                return path(*args, **params)
            return recorder.noted(name, path, args, params)

        if hasattr(path, "batch"):
            noted.batch = path.batch  # type: ignore[attr-defined]  # of `ns.formula`
        setattr(self, name, noted)
        return noted


def _is_selection(indices: Sequence[Any]) -> bool:
    """Whether a boolean array is among the indices: it selects as many places as are True."""
    return any(_is_array(i) and i.dtype.kind == "b" for i in indices)


def _is_plain(data: Any) -> bool:
    """Whether data are Python's numbers, perhaps in lists."""
    if isinstance(data, (list, tuple)):
        return all(map(_is_plain, data))
    return isinstance(data, (bool, int, float, complex))


def copied(device: Device, values: np.ndarray) -> Array:
    return device.copy(device.from_numpy(values), label="tensor")


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or (
        hasattr(type(value), "__cuda_array_interface__") and not isinstance(value, Tensor))


def _key(array: Array) -> Any:
    return (*layout(array), array.dtype)


def _here() -> tuple[CodeType, int]:
    """The user's instruction; in a backward pass the one that recorded the running rule."""
    if here.phase == "backward" and here.instruction is not None:
        return here.instruction
    from sys import _getframe

    frame = user_frame(_getframe(1))
    return frame.f_code, frame.f_lasti


def _above() -> int:
    """The id of the frame that called the user's."""
    from sys import _getframe

    return id(user_frame(_getframe(1)).f_back)
