"""Tensor: a handle with an array, its device, its storage and its node on the tape."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar
from weakref import ref

import numpy as np

from gtensor.backend import Device, DeviceError, element_type, get_default_dtype, get_device
from gtensor.engine.handle.consumed import Consumed
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.hooks import RemovableHandle
from gtensor.engine.handle.interchange import Interchange
from gtensor.engine.handle.methods import Methods
from gtensor.engine.handle.namespaces import public, recorded
from gtensor.engine.handle.node import Leaf, Node
from gtensor.engine.handle.size import Size
from gtensor.engine.handle.storage import GIVEN, UNREAD, Storage
from gtensor.system.bus import bus, here
from gtensor.system.fork_safety import free_at_forks
from gtensor.system.written_code import refuse

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend.streams import Stream
    from gtensor.backend.typing import Array, DTypeLike, Nested, Scalar

_new = object.__new__
_first_fact = threading.RLock()
free_at_forks(_first_fact)
N = TypeVar("N", bool, int, float, complex)
FLOATING = "fV"  # dtype kinds that can carry a gradient (V: bfloat16 and other ml_dtypes)
# What may stand beside a Tensor.
Operand: TypeAlias = "Tensor | Array | Scalar | Nested"


class Tensor(Interchange, Methods):
    """An n-dimensional array on a device, with gradients; `gtensor.tensor` makes one from data.

    `array` is the NumPy or CuPy array itself. Arithmetic, slicing and the methods of `Methods`
    behave as in NumPy; they are recorded when an operand requires a gradient.

    Calling the class raises TypeError.
    """

    __slots__ = ("__weakref__", "_array", "_device", "_node", "_storage", "_version")

    __hash__ = object.__hash__

    _array: Array
    _device: Device
    _node: Node | None
    _storage: Storage
    _version: int  # the storage's version that this handle's node describes

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("Tensor is not made by calling it; use gtensor.tensor(data) (copies) or "
                        "gtensor.asarray(data) (does not)")

    # -- what it is -------------------------------------------------------------------------------

    @property
    def array(self) -> Array:
        """The memory as a NumPy or CuPy array, without history. Its storage is marked as exported.

        Raises GradientError for a value that a function given to `gt.grad` computes from its
        arguments: detach() it first.
        """
        self._refuse_cut(".array")
        array = self._lent()
        self._device.exported(array)
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements, an object of NumPy's."""
        return self._array.dtype

    @property
    def device(self) -> Device:
        """The device whose memory holds the elements."""
        return self._device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._array.ndim

    @property
    def size(self) -> Size:
        """Number of elements; `size()` is the shape and `size(i)` a length of it, as PyTorch's."""
        return Size.of(self._array)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (not of the storage behind a view)."""
        return self._array.nbytes

    def __len__(self) -> int:
        if not self._array.ndim:
            raise TypeError("len() of a 0-d tensor; wanted at least one axis")
        return self._array.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self._array.ndim:
            raise TypeError("iteration over a 0-d tensor; wanted at least one axis")
        return (self[i] for i in range(self._array.shape[0]))

    def __copy__(self) -> Tensor:
        node = self._current_node("copy")
        copy = wrap(self._array, self._device, self._own_storage())
        copy._node = node
        return copy

    def __reduce__(self) -> tuple[object, ...]:
        self._refuse_history("pickle")
        self._note_read("a pickle")
        values = np.array(self._device.to_numpy(self._array))
        return _unpickled, (values, str(self._device), self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        self._refuse_history("deepcopy")
        copy = _new(type(self))
        copy._array, copy._device = self._device.copy(self._array), self._device
        copy._storage, copy._version, copy._node = GIVEN, GIVEN.version, None
        if self.requires_grad:
            copy._begin_as_leaf().grad = deepcopy(self.grad, memo)
        return copy

    def __repr__(self) -> str:
        if isinstance(self._array, Consumed):
            return f"tensor(<{self._array.why}>, shape={self.shape}, dtype={self.dtype.name})"
        self._note_read("the text")
        body = np.array2string(self._device.to_numpy(self._array), separator=", ", prefix="tensor(",
                               threshold=200, edgeitems=3)
        parts = [body]
        if self.dtype not in (get_default_dtype(), np.dtype("int64"), np.dtype("bool")):
            parts.append(f"dtype={self.dtype.name}")
        if self._device.type != "cpu":
            parts.append(f"device='{self._device}'")
        if self._node is not None and self._node.op is not None:
            parts.append(f"op={self._node.op.name}")
        elif self._node is not None:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: shape, dtype, device and bytes over the values."""
        from gtensor.system.notebook import lines, titled

        return titled(f"{type(self).__name__} {self.shape}, {self.dtype.name} on {self.device}",
                      lines(repr(self)))

    def _zeros(self) -> Tensor:
        """Constant zeros of this shape and dtype: one element, read everywhere."""
        zero = zeros(self._device, (), self.dtype)
        return recorded.broadcast_to(zero, shape=self.shape)

    # -- values out -------------------------------------------------------------------------------

    def item(self) -> int | float:  # complex, too; its type would refuse `x.item() < 1`
        """The value of a tensor of one element, as a Python scalar. Waits for the GPU.

        Raises ValueError for another number of elements.
        """
        array = self._array
        if type(array) is np.ndarray and array.size == 1 and not bus.listeners:
            return array.item()
        if array.size != 1:
            raise ValueError(f"item() was called on a tensor of shape {self.shape}; "
                             "wanted one element (tolist() gives all)")
        return self._value()

    def tolist(self) -> Any:
        """The values as nested Python lists."""
        self._note_read("tolist()")
        return self._device.to_numpy(self._array).tolist()

    def _scalar(self, kind: type[N]) -> N:
        if self._array.size != 1:
            ways = "x.any() and x.all() make one" if kind is bool else "x[i] is one"
            raise TypeError(f"{kind.__name__}() of a tensor of shape {self.shape}; "
                            f"wanted one element ({ways})")
        return kind(self._value())

    def _value(self) -> Any:
        self._note_read("item()")
        return self._device.to_numpy(self._array).item()  # by the device: it orders streams

    def __format__(self, form: str) -> str:
        """One element is formatted as its Python number, so that `f"{loss:.3f}"` works."""
        return format(self.item() if form and self._array.size == 1 else str(self), form)

    def __bool__(self) -> bool:
        return self._scalar(bool)

    def __int__(self) -> int:
        return self._scalar(int)

    def __float__(self) -> float:
        return self._scalar(float)

    def __complex__(self) -> complex:
        return self._scalar(complex)

    def __index__(self) -> int:
        if self._array.ndim or self.dtype.kind not in "iu":
            raise TypeError(f"a tensor of shape {self.shape} and dtype {self.dtype} was given as "
                            "an index; wanted a 0-d integer tensor")
        return int(self._value())

    # -- gradients --------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to or through this tensor; assigning calls `requires_grad_`."""
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    @property
    def is_leaf(self) -> bool:
        """True unless a recorded op made it."""
        return self._node is None or self._node.op is None

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Make this tensor a leaf whose gradient is kept in `.grad`, or a constant again.

        A constant has no `.grad`, which PyTorch keeps. Raises GradientError if an op's output is
        to be a constant: detach() gives one.

        Raises TypeError for a dtype that is not floating, or an argument that is not True or False.
        """
        if not isinstance(requires_grad, (bool, np.bool_)):
            raise TypeError(f"requires_grad was given {type(requires_grad).__name__}; wanted True "
                            "or False")
        node = self._current_node("requires_grad_()")
        if node is not None and node.op is not None:
            if not requires_grad:
                raise GradientError(f"requires_grad_(False) on the output of {node.where()}; "
                                    "use detach() for a tensor without its history")
        elif not requires_grad:
            self._refuse_cut("requires_grad_(False)")
            self._count("requires_grad_(False)")
            self._node = None  # `leaf` stays set: another handle on the storage may be a leaf
        elif node is None:
            self._begin_as_leaf()
            self._count("requires_grad_()")
        return self

    def _begin_as_leaf(self) -> Self:
        """`requires_grad_()` of a tensor that no other code has yet."""
        if not is_floating(self.dtype):
            raise TypeError(f"requires_grad was asked of a tensor of dtype {self.dtype}; "
                            "gradients need a floating-point dtype")
        self._node = self._leaf()
        return self

    def _count(self, what: str) -> None:
        """Tell recorded steps of a change."""
        from gtensor.system import structure

        structure.changed(f"{what} of a tensor of shape {self.shape}")

    def _leaf(self) -> Leaf:
        """A new leaf for this handle's values."""
        self._own_storage().leaf = True
        return Leaf(self._array.shape, self._array.dtype, self._device)

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward() stored: of leaves, and of tensors with retain_grad().

        What was read is never written by a later walk, which adds in place to other gradients.
        """
        if self._node is None:
            return None
        grad = self._node.grad
        if bus.listeners and here.recorder is not None:
            here.recorder.finds(self._node, grad)
        if grad is not None and grad._storage is UNREAD:
            grad._storage = GIVEN  # from here on no walk takes it
            if self._node.grad is not grad:  # one of another thread has
                return self.grad
        return grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if self._node is None:
            raise GradientError("grad was assigned to a tensor that does not require a gradient; "
                                "call requires_grad_() first")
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"grad was given {type(value).__name__}; wanted a Tensor or None")
            check_like("grad", value, self._node)
        if bus.listeners and here.recorder is not None:
            here.recorder.stores([self._node], [value])
        self._node.grad = value

    def retain_grad(self) -> None:
        """Let backward() store this tensor's gradient in `.grad` although it is not a leaf."""
        node = self._tracked_node("retain_grad()")
        if not node.retain:
            self._count("retain_grad()")
            node.retain = True
        # Writes through views look for this handle among those of the storage, where it is missing
        # if a save made the storage.
        storage = self._own_storage()
        if not storage.has(self):
            storage.join(self)

    def backward(
        self,
        grad: Tensor | None = None,
        *,
        create_graph: bool = False,
        retain_graph: bool | None = None,
        batched: bool = False,
    ) -> None:
        """Add the gradient of this tensor with respect to every leaf to the leaf's `.grad`.

        A tensor that was read from `.grad` stays as it is, where PyTorch adds to it.

        Args:
            grad: gradient of this tensor, of its shape and dtype; may be left out for one element.
                It is only read.
            create_graph: record the backward pass, so that its result can be differentiated.
            retain_graph: keep the graph for another backward (default: as create_graph).
            batched: `grad` is a stack of N gradients, (N, *shape), and so is each `.grad`: one walk
                in place of N.

        Raises GradientError if the graph was consumed, a saved array was overwritten, or an op in
        it has no derivative. Gradients are stored together at the end, so after an error a `.grad`
        is unchanged, unless no other code has it and the walk has added to it in place: a note to
        the error names those, and GTENSOR_DEBUG=1 keeps copies.
        """
        try:
            public.backward(
                self, grad, create_graph, create_graph if retain_graph is None else retain_graph,
                batched)
        except Exception as error:
            refuse(Tensor.backward, {
                "self": self, "grad": grad, "create_graph": create_graph,
                "retain_graph": retain_graph, "batched": batched}, error)
            raise

    def detach(self) -> Tensor:
        """A handle on the same memory without history."""
        return wrap(self._array, self._device, self._own_storage())

    def _own_storage(self, shares: bool = True) -> Storage:
        """The storage, to change or to share; a common one is first replaced by a new object.

        `shares`: whether to track the tensors that share it.
        """
        storage = self._storage
        if storage.common:
            with _first_fact:  # two threads must not make two
                first = Storage()
                if shares:
                    first.join(self)
                storage = self._storage  # stores: a finalizer may have set one
                if storage.common:
                    first.made = storage.made
                    self._storage = storage = first
        elif shares and storage.handles is None:  # a save made it, for this tensor alone
            storage.join(self)
        return storage

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call `hook(gradient)` when a backward has this tensor's whole gradient.

        If it returns a tensor, that replaces the gradient; it must have the same shape, dtype and
        device. The gradient must not be written. Returns a handle whose `remove()` removes the
        hook. Hooks run in the order in which they were registered.
        """
        node = self._tracked_node("register_hook()")
        if node.hooks is None:
            node.hooks = {}
        return RemovableHandle(node.hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], object]
                                           ) -> RemovableHandle:
        """Call `hook(tensor)` after a `backward()` that has stored or added to this leaf's `.grad`.

        It runs when the gradients of all leaves are stored, which happens at once at the end of the
        walk, so that an error in it leaves none half stored; PyTorch runs it within the walk.
        Raises GradientError for a tensor that is no leaf or requires no gradient.

        Raises TypeError for a hook that is no function.
        """
        node = self._tracked_node("register_post_accumulate_grad_hook()")
        if not self.is_leaf:
            raise GradientError("register_post_accumulate_grad_hook() of the output of an op; "
                                "wanted a leaf that requires a gradient")
        if node.stored is None:
            node.stored = {}
        if not callable(hook):
            raise TypeError(f"a hook was given as {type(hook).__name__}; wanted a function")
        found = ref(self)

        def run() -> None:
            tensor = found()
            if tensor is not None and tensor._node is node:
                hook(tensor)

        return RemovableHandle(node.stored, run)

    # -- placement --------------------------------------------------------------------------------

    def to_device(self, device: Device | str, /, *, stream: Stream | None = None) -> Tensor:
        """A copy on a device, queued on `stream`; this tensor itself if it is already there."""
        place = get_device(device)
        if stream is None:
            return self.to(place)
        with stream:
            return self.to(place)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """The module with the array API's functions: gtensor."""
        gtensor = sys.modules["gtensor"]
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"the array API version {api_version!r} was asked for; wanted "
                             f"{gtensor.__array_api_version__!r} or an earlier one")
        return gtensor

    def to(
        self, target: Device | DTypeLike | Tensor | None = None,
        dtype: DTypeLike | bool | None = None, *,
        device: Device | str | None = None, non_blocking: bool = False, copy: bool = False,
    ) -> Tensor:
        """A copy on a device ('cpu', 'cuda:1') or in a dtype; this tensor itself if it fits.

        A cast is recorded, and so is a copy to a device. Both may be given, or a tensor whose
        device and dtype are wanted. `copy`: not this tensor itself. `non_blocking` changes nothing:
        streams order copies. Raises TypeError for None, and for one thing given twice.
        """
        if dtype is not None or device is not None or copy or isinstance(target, Tensor):
            return self._to_both(target, dtype, device, copy)
        if target is None:
            raise TypeError("to() was given None; wanted a device or a dtype")
        if isinstance(target, Device) or (isinstance(target, str) and _names_device(target)):
            device = get_device(target)
            return self if device is self._device else recorded.to_device(self, device=device)
        try:
            dtype = element_type(target)
        except TypeError:
            raise TypeError(f"to() was given {target!r}; wanted a device such as 'cpu' or 'cuda', "
                            "or a dtype") from None
        return self if dtype == self.dtype else recorded.astype(self, dtype=dtype)

    def _to_both(self, target: Any, dtype: Any, device: Any, copy: bool) -> Tensor:
        """`to` with more than a target."""
        if isinstance(target, Tensor):
            target, device = target.dtype, target.device if device is None else device
        given = [t for t in (target, device, dtype)
                 if t is not None and not isinstance(t, (bool, np.bool_))]  # PyTorch's non_blocking
        places = [t for t in given if isinstance(t, Device)
                  or isinstance(t, str) and _names_device(t)]
        kinds = [t for t in given if t not in places]
        if len(places) > 1 or len(kinds) > 1:
            raise TypeError(f"to() was given {', '.join(map(str, given))}; wanted one device and "
                            "one dtype")
        found = self
        for one in (*places, *kinds):
            found = found.to(one)
        return recorded.clone(found) if copy and found is self else found


def is_floating(dtype: np.dtype) -> bool:
    """Whether tensors of the dtype can have a gradient: real floats, also of ml_dtypes."""
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.names is None and dtype.num >= 256)


def wrap(array: Array, device: Device, storage: Storage = GIVEN) -> Tensor:
    """A Tensor over an array, without history.

    `storage` is FRESH (on the CPU) for an op's own output, which a later op may overwrite.
    """
    result = _new(Tensor)
    result._array = array
    result._device = device
    result._node = None
    result._storage = storage
    result._version = storage.version
    if not storage.common:
        storage.join(result)
    return result


def zeros(device: Device, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    """A tensor of zeros: a gradient or a tangent that is constant."""
    array = _zeros(device, shape, dtype)
    if bus.listeners and here.recorder is not None:
        here.recorder.note("zeros", _zeros, (device, shape, dtype), {}, array)
    return wrap(array, device)


def _zeros(device: Device, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return device.fill(device.empty(shape, dtype, "gradient"), 0)


def _unpickled(values: np.ndarray, device: str, requires_grad: bool) -> Tensor:
    place = get_device(device)
    result = wrap(place.copy(place.from_numpy(values)), place)
    return result._begin_as_leaf() if requires_grad else result


_unpickled.__module__ = "gtensor"  # pickles name it, and outlive the places of files


def is_like(value: Tensor, node: Node | Tensor) -> bool:
    """Whether `check_like` accepts the value."""
    array = value._array
    return (array.shape == node.shape and array.dtype == node.dtype
            and value._device is node.device)


def check_like(what: str, value: Tensor, node: Node | Tensor) -> None:
    """Raise unless `value` has the shape, dtype and device of a tensor or a node."""
    array = value._array
    if array.shape != node.shape:
        raise ValueError(f"{what} of shape {array.shape} given for a tensor of shape {node.shape}")
    if array.dtype != node.dtype:
        raise TypeError(f"{what} of dtype {array.dtype} given for a tensor of dtype {node.dtype}")
    if value._device is not node.device:
        raise DeviceError(f"{what} on {value._device} given for a tensor on {node.device}")


def _names_device(text: str) -> bool:
    return text.partition(":")[0] in ("cpu", "cuda")
