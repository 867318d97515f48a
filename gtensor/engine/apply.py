"""`apply`: run an op on Tensors and, if an input requires a gradient, record it on the tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import (
    Device,
    DeviceError,
    default_device,
    device_of,
    get_device,
    host_array,
    owner,
)
from gtensor.engine.context import STATE, observers, run
from gtensor.engine.errors import refuse_complex
from gtensor.engine.interchange import plain_values
from gtensor.engine.recompute import WithRecipes
from gtensor.engine.storage import FRESH, GIVEN, Storage
from gtensor.engine.tape import Guard, Guards, Node, Record, replayed
from gtensor.engine.tensor import FLOATING, Tensor, wrap

if TYPE_CHECKING:
    from gtensor.backend.typing import Array, Params
    from gtensor.engine.op import Op
    from gtensor.engine.typing import Saved

Plan = tuple[int | None, ...]
NO_PARAMS: Params = {}  # shared by all records of ops without parameters; never written
_HOST = get_device("cpu")
_SCALARS = (bool, int, float, complex)
_SECOND = (None, 1)  # the plan of a product by a number
_USER_DTYPE = 256  # dtype numbers from here on are user-defined (ml_dtypes)
_DEFAULT_FLOAT = np.dtype("float32")
_DEFAULTS = {  # NumPy's default dtypes for Python numbers -> gtensor's
    np.dtype("float64"): _DEFAULT_FLOAT, np.dtype("complex128"): np.dtype("complex64")}
_MOST_CONSTANTS = 1024


class _Constants(dict[float, np.ndarray | float]):
    """Numbers as 0-d arrays of a float dtype, cached: a conversion costs as much as a small op.

    Zero stays a number (0.0 and -0.0 are one key), and so does NaN (it never equals a key). For
    arrays of other dtypes every number stays one, and NumPy's own rules apply.
    """

    def __init__(self, dtype: np.dtype | None = None) -> None:
        self.dtype = dtype

    def __missing__(self, value: float) -> np.ndarray | float:
        if self.dtype is None or value == 0 or value != value:
            return value
        if len(self) >= _MOST_CONSTANTS:
            self.clear()
        self[value] = made = np.asarray(value, self.dtype)
        made.flags.writeable = False
        return made


_CONSTANTS = {dtype.num: _Constants(dtype) for dtype in map(np.dtype, ("float32", "float64"))}
_AS_GIVEN = _Constants()


class Target:
    """The output buffer of an op that overwrites its input, and the path's extra results."""

    __slots__ = ("array", "extras")

    def __init__(self, array: Array | None) -> None:
        self.array = array  # the memory to write, None for a new buffer
        self.extras: tuple[Array, ...] = ()  # the further arrays that the path returned


def apply(
    op: Op, inputs: tuple[object, ...], params: Params, target: Target | None = None
) -> Tensor:
    """The op's output on `inputs` (Tensors, Python scalars, arrays, None where optional)."""
    device: Device | None = None
    tensor: Tensor | None = None
    arrays: list[Any] = []
    parents: list[Node | None] = []
    mask = 0  # bit i: input i has a node
    bit = 1
    numbers = others = False  # whether inputs are Python numbers, or values to convert to arrays
    for value in inputs:
        if isinstance(value, Tensor):
            tensor = value
            if value._device is not device:
                device = _common_device(op, device, value._device)
            if value._version != value._storage.version:
                value._check_version(op.name)
            node = value._node
            if node is not None:
                mask |= bit
            arrays.append(value._array)
            parents.append(node)
        else:
            kind = type(value)
            if kind is float or kind is int:
                numbers = True
            else:
                others = True
            arrays.append(value)
            parents.append(None)
        bit <<= 1
    if others or tensor is None or (numbers and tensor._array.dtype.num >= _USER_DTYPE):
        device = adopt_constants(op, arrays, device)
    assert device is not None
    if op.floating:
        _to_floating(arrays, device, op.name)
    tracked = mask != 0 and STATE.grad_enabled
    if tracked and op.backward is None and op.composed is not None:
        return op.composed(*inputs, **params)
    given = params if target is None else {**params, "out": target.array}
    if device.type == "cpu" and observers.current is None:
        out = op.cpu(*arrays, **given) if given else op.cpu(*arrays)
    else:
        out = run(op, device, arrays, given)
    extras: tuple[Array, ...] = ()
    if op.extra_names:
        out, *extras = out
        if target is not None:
            target.extras = tuple(extras)
    if type(out) is not device.array_type:
        out, device = _settled(out, device)
    result = wrap(out, device, _storage_of(out, inputs) if op.view else op.storage)
    if tracked and (op.complex or _carries_gradient(op, out.dtype)):
        plan = op.plan(mask, len(inputs))
        saved, guards = (saves(plan, (*arrays, out, *extras), (*inputs, result)) if plan
                         else op.nothing_saved)
        result._node = Record(op, tuple(parents), mask, saved, guards, params, out, device)
        if device is not _HOST:
            result._node.stream = device.current_stream()
    return result


def apply_one(op: Op, x: Any, /, **params: Any) -> Tensor:
    """`apply` unrolled for one input on the CPU.

    With small arrays Python's time per op dominates, and most ops have one or two inputs. All
    special cases call `apply`, which defines the semantics; a test compares the two.
    """
    try:
        array, parent = x._array, x._node
    except AttributeError:  # not a Tensor; `try` costs less than a check
        return apply(op, (x,), params)
    if (x._device is not _HOST or observers.current is not None
            or (x._storage is not FRESH and x._version != x._storage.version)
            or (op.floating and array.dtype.kind in "iub")):
        return apply(op, (x,), params)
    tracked = parent is not None and STATE.grad_enabled
    if tracked and op.backward is None:
        return apply(op, (x,), params)
    out = op.cpu(array, **params) if params else op.cpu(array)
    if type(out) is not np.ndarray:
        out = np.asarray(out)
    result = wrap(out, _HOST, op.storage)
    if tracked and (op.complex or _carries_gradient(op, out.dtype)):
        plan = op.plans[1]
        saved, guards = saves(plan, (array, out), (x, result)) if plan else op.nothing_saved
        result._node = Record(op, (parent,), 1, saved, guards, params, out, _HOST)
    return result


def apply_pair(op: Op, x1: Any, x2: Any) -> Tensor:
    """`apply` unrolled for two inputs, of which the second may be a number. See `apply_one`."""
    try:
        a1, parent1 = x1._array, x1._node
    except AttributeError:  # as in `apply_one`
        return apply(op, (x1, x2), NO_PARAMS)
    kind = type(x2)
    if kind is float or kind is int:
        number = a1.dtype.num
        a2, parent2 = _CONSTANTS.get(number, _AS_GIVEN)[x2], None
        usual = number < _USER_DTYPE
    elif isinstance(x2, Tensor):
        a2, parent2 = x2._array, x2._node
        usual = x2._device is _HOST and (
            x2._storage is FRESH or x2._version == x2._storage.version)
    else:
        usual = False
    if (not usual or x1._device is not _HOST
            or (x1._storage is not FRESH and x1._version != x1._storage.version)
            or observers.current is not None or (op.floating and a1.dtype.kind in "iub")):
        return apply(op, (x1, x2), NO_PARAMS)
    tracked = (parent1 is not None or parent2 is not None) and STATE.grad_enabled
    if tracked and op.backward is None:
        return apply(op, (x1, x2), NO_PARAMS)
    out = op.cpu(a1, a2)
    if type(out) is not np.ndarray:
        out = np.asarray(out)
    result = wrap(out, _HOST, op.storage)
    if tracked and (op.complex or _carries_gradient(op, out.dtype)):
        mask = (parent1 is not None) + 2 * (parent2 is not None)
        plan = op.plans[mask]
        if not plan:
            saved, guards = op.nothing_saved
        elif plan == _SECOND and parent2 is None and not isinstance(x2, Tensor):
            saved, guards = (None, a2), ()  # a number, which cannot be overwritten
        else:
            saved, guards = saves(plan, (a1, a2, out), (x1, x2, result))
        result._node = Record(op, (parent1, parent2), mask, saved, guards, NO_PARAMS, out, _HOST)
    return result


def _carries_gradient(op: Op, dtype: np.dtype) -> bool:
    """Whether a gradient flows through an output of that dtype; raises if it is complex."""
    if dtype.kind == "c":
        refuse_complex(op.name)
    return dtype.kind in FLOATING


def saves(plan: Plan, values: Sequence[Any], handles: Sequence[object]) -> tuple[Saved, Guards]:
    """The values that the backward rule needs, and guards that detect an overwrite of them.

    `values` are the arrays and scalars of inputs, output and extras; `handles` are the Tensors
    among them, at the same positions. Extras have no handle, so no user can write them.
    """
    saved: list[Any] = []
    guards: list[Guard] = []
    kind: type[tuple[Any, ...]] = tuple
    for position in plan:
        if position is None:
            saved.append(None)
            continue
        value = values[position]
        handle = handles[position] if position < len(handles) else None
        if isinstance(handle, Tensor):
            storage = handle._own_storage(False)  # `saved` is sticky: sharing is tracked no more
            recipe = storage.recipe() if storage.recipe is not None else None
            if recipe is not None and recipe.fits(handle, value):
                value, kind = recipe, WithRecipes
                guards += recipe.guards
            else:
                storage.saved = True
                guards.append((storage, handle._version, len(saved)))
                if handle._device.graphs:
                    guards += replayed(value, handle._device)
        elif handle is not None and type(value) not in _SCALARS:
            value = value.copy()  # the caller's own array, whose writes no version counts
        saved.append(value)
    return kind(saved), tuple(guards)


def _common_device(op: Op, device: Device | None, other: Device) -> Device:
    if device is not None:
        raise DeviceError(f"{op.name} was given tensors on {device} and {other}; move them to one "
                          f"device with .to({str(device)!r}) first")
    return other


def adopt_constants(op: Op, arrays: list[Any], device: Device | None) -> Device:
    """Convert inputs that are not Tensors to arrays of the device; Python scalars stay scalars."""
    if device is None:
        device = default_device()
        if all(isinstance(value, _SCALARS) or value is None for value in arrays):
            arrays[0] = device.from_numpy(_as_numpy(op, arrays[0]))
    for i, value in enumerate(arrays):
        if type(value) is float or type(value) is int or value is None:
            continue
        if isinstance(value, np.generic):
            arrays[i] = host_array(value, op.name).item()  # weakly typed, as a Python scalar
        elif isinstance(value, np.ndarray) or not isinstance(value, (device.array_type, *_SCALARS)):
            arrays[i] = device.from_numpy(_as_numpy(op, value))
    strong = [a for a in arrays if isinstance(a, device.array_type)]
    if any(a.dtype.kind == "V" for a in strong):  # ml_dtypes: NumPy would promote a Python scalar
        dtype = np.result_type(*[a.dtype for a in strong if a.dtype.kind in "fVc"])
        for i, value in enumerate(arrays):
            if type(value) in (int, float):
                arrays[i] = device.from_numpy(np.asarray(value, dtype))
    return device


def _as_numpy(op: Op, value: object) -> np.ndarray:
    array = host_array(plain_values(value, op.name), op.name)
    if isinstance(value, np.ndarray):
        return array
    return array.astype(_DEFAULTS.get(array.dtype, array.dtype), copy=False)


def _to_floating(arrays: list[Any], device: Device, name: str) -> None:
    """Convert integer arrays to the default float dtype, for ops with `floating=True`."""
    for i, value in enumerate(arrays):
        if isinstance(value, device.array_type) and value.dtype.kind in "iub":
            arrays[i] = device.copy(value, _DEFAULT_FLOAT, name)


def _settled(out: Array, device: Device) -> tuple[Array, Device]:
    """An output as an array, and its device: for NumPy's 0-d scalars, and after a move."""
    elsewhere = hasattr(out, "device") and not isinstance(out, (np.generic, device.array_type))
    if elsewhere:
        device = device_of(out)
    return device.xp.asarray(out), device


def _storage_of(out: Array, inputs: tuple[object, ...]) -> Storage:
    """The storage of a view op's output: that of the input it views, else a new one."""
    root = owner(out)
    for value in inputs:
        if isinstance(value, Tensor) and owner(value._array) is root:
            return value._own_storage()
    return FRESH if root is out else GIVEN
