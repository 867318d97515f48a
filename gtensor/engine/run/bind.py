"""`bind`: run an op on Tensors and, if an input requires a gradient, record it on the tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from gtensor.backend import (
    DEFAULTS,
    Device,
    DeviceError,
    default_device,
    device_of,
    get_device,
    host_array,
    owner,
)
from gtensor.engine.handle.context import casting, grad_enabled
from gtensor.engine.handle.errors import refuse_complex
from gtensor.engine.handle.interchange import plain_values
from gtensor.engine.handle.node import Node
from gtensor.engine.handle.saved import Guard, Guards, replayed
from gtensor.engine.handle.storage import FRESH, FRESH_ELSEWHERE, GIVEN, Storage
from gtensor.engine.handle.tensor import FLOATING, Tensor, wrap
from gtensor.engine.tape.execute import execute, run_noted
from gtensor.engine.tape.levels import KeptExtras, newest
from gtensor.engine.tape.recipes import WithRecipes
from gtensor.engine.tape.record import new_record
from gtensor.engine.tape.taken import Takeable, saved_first
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from collections.abc import Callable

    from gtensor.backend.typing import Array, Params
    from gtensor.engine.handle.saved import Saved
    from gtensor.engine.tape.op import Op
    from gtensor.engine.tape.taken import Spare

Plan = tuple[int | None, ...]
Store: TypeAlias = "Callable[..., Tensor]"
NO_PARAMS: Params = {}  # shared by all records of ops without parameters; never written
HOST = get_device("cpu")
SCALARS = (bool, int, float, complex)
USER_DTYPE = 256  # dtype numbers from here on are user-defined (ml_dtypes)
FLOAT32 = np.dtype("float32")
_OF_PYTHON = {np.dtype("float64"): "f", np.dtype("complex128"): "c"}  # NumPy's, of its numbers
INTEGERS = "biu"  # kinds of dtypes, booleans among them
LAST_INTEGER = 10  # dtype numbers up to here are integers
_MOST_CONSTANTS = 1024


class _Constants(dict[float, np.ndarray | float]):
    """Numbers as 0-d arrays of a float dtype, cached: a conversion costs as much as a small op.

    Zero stays a number (0.0 and -0.0 are one key), and so does NaN (it never equals a key).
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    def __missing__(self, value: float) -> np.ndarray | float:
        if value == 0 or value != value:
            return value
        if len(self) >= _MOST_CONSTANTS:
            self.clear()
        self[value] = made = np.asarray(value, self.dtype)
        made.flags.writeable = False
        return made


FLOAT32_CONSTANTS = _Constants("float32")
_CONSTANTS = {c.dtype: c for c in (FLOAT32_CONSTANTS, _Constants("float64"))}


def constant(value: float, dtype: np.dtype) -> np.ndarray | float | None:
    """A number beside an array of that dtype; None if it takes more (see `adopt_constants`)."""
    known = _CONSTANTS.get(dtype)
    if known is not None:
        return known[value]
    takes_more = dtype.num >= USER_DTYPE or type(value) is float and dtype.num <= LAST_INTEGER
    return None if takes_more else value


class Target:
    """The output buffer of an op that overwrites its input, and the path's extra results."""

    __slots__ = ("array", "extras")

    def __init__(self, array: Array | None) -> None:
        self.array = array  # the memory to write, None for a new buffer
        self.extras: tuple[Array, ...] = ()  # the further arrays that the path returned


def bind(
    op: Op, inputs: tuple[object, ...], params: Params, store: Store | None = None
) -> Tensor:
    """Run an op on `inputs`: Tensors, Python scalars, arrays, None where optional.

    Every op runs through here, or through the text that `call_text` writes of it. `store` is what
    becomes of the output: None makes a new Tensor of it, the writes of `in_place` and `overwrite`
    put it into an input's memory.
    """
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
                if device is not None:
                    _refuse_devices(op, device, value._device)
                device = value._device
            if value._version != value._storage.version:
                level = newest(op.name, inputs)
                if level is not None:
                    return level.bind(op, inputs, params, store)
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
    if others or tensor is None or (
            numbers and not LAST_INTEGER < tensor._array.dtype.num < USER_DTYPE):
        device = adopt_constants(op, arrays, device)
    assert device is not None
    if op.floating:
        _to_floating(arrays, device, op.name)
    return (store or fresh)(op, inputs, params, arrays, tuple(parents), mask, device)


class Extras(KeptExtras):
    """The store of a new Tensor whose extras are kept as Tensors."""

    def __call__(
        self, op: Op, inputs: tuple[object, ...], params: Params, arrays: list[Any],
        parents: tuple[Node | None, ...], mask: int, device: Device,
    ) -> Tensor:
        target = Target(None)
        result = fresh(op, inputs, params, arrays, parents, mask, device, target)
        self.extras = tuple(wrap(array, device) for array in target.extras)
        return result


def fresh(
    op: Op, inputs: tuple[object, ...], params: Params, arrays: list[Any],
    parents: tuple[Node | None, ...], mask: int, device: Device, target: Target | None = None,
) -> Tensor:
    """The output as a new Tensor, recorded if an input has a node."""
    tracked = mask != 0 and grad_enabled()
    if tracked and op.backward is None and op.composed is not None:
        return uncast(op, inputs, params)
    out = execute(op, device, arrays, params if target is None else {**params, "out": target.array})
    extras: tuple[Array, ...] = ()
    if op.extra_names:
        out, *extras = out
        if target is not None:
            target.extras = tuple(extras)
    if type(out) is not device.array_type:
        if op.moves:
            device = device_of(out)
        out = device.xp.asarray(out)  # the libraries return scalars for 0-d
    storage = (storage_of(out, inputs) if op.view
               else FRESH_ELSEWHERE if op.owns and device is not HOST else op.storage)
    result = wrap(out, device, storage)
    if tracked and (op.complex or carries_gradient(op, out.dtype)):
        plan = op.plan(mask, len(inputs))
        saved, guards = (saves(plan, (*arrays, out, *extras), (*inputs, result), op.takes) if plan
                         else op.nothing_saved)
        result._node = new_record(op, parents, mask, saved, guards, params, out, device)
    return result


def uncast(op: Op, inputs: tuple[object, ...], params: Params) -> Tensor:
    """The op as other ops, of which `gt.autocast` casts no inputs: the op's own decide."""
    assert op.composed is not None
    with casting(None):
        return op.composed(*inputs, **params)


def carries_gradient(op: Op, dtype: np.dtype) -> bool:
    """Whether a gradient flows through an output of that dtype; raises if it is complex."""
    if dtype.kind == "c":
        refuse_complex(op.name)
    return dtype.kind in FLOATING


def saves(
    plan: Plan, values: Sequence[Any], handles: Sequence[object], takes: int | None = None
) -> tuple[Saved, Guards]:
    """The values that the backward rule needs, and guards that detect an overwrite of them.

    `values` are the arrays and scalars of inputs, output and extras; `handles` are the Tensors
    among them, at the same positions. Extras have no handle, so no user can write them. `takes` is
    the position of a value that the rule may take.
    """
    saved: list[Any] = []
    guards: list[Guard] = []
    kind: type[tuple[Any, ...]] = tuple
    spare: Spare | None = None
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
                mark = saved_first(handle, storage) if position == takes else None
                if mark is None:
                    storage.saved = True
                else:
                    spare = value, storage, mark
                guards.append((storage, handle._version, len(saved)))
                if handle._device.graphs:
                    guards += replayed(value, handle._device)
        elif type(handle) in SCALARS:
            value = handle  # not the array of `constant`
        elif handle is not None and type(value) not in SCALARS:
            value = value.copy()  # the caller's own array, whose writes no version counts
        saved.append(value)
    if spare is not None and kind is tuple:
        takeable = Takeable(saved)
        takeable.spare = spare
        return takeable, tuple(guards)
    return kind(saved), tuple(guards)


def saving(x: Tensor) -> Storage | None:
    """The storage of an array that a record saves; None if a recipe may take the array's place."""
    storage = x._storage
    if storage.common:
        storage = x._own_storage(False)
    elif storage.recipe is not None:
        return None
    storage.saved = True
    return storage


def refuse_arrays(op: Op, params: Params) -> None:
    """Raise TypeError for an array among the parameters of a user's op."""
    for name, value in params.items():
        if isinstance(value, (Tensor, np.ndarray)) or hasattr(value, "__cuda_array_interface__"):
            raise TypeError(f"{op.name} was given an array as its parameter {name!r}; wanted it "
                            "among the inputs, by position")


def _refuse_devices(op: Op, device: Device, other: Device) -> NoReturn:
    raise DeviceError(f"{op.name} was given tensors on {device} and {other}; move them to one "
                      f"device with .to({str(device)!r}) first")


def adopt_constants(op: Op, arrays: list[Any], device: Device | None) -> Device:
    """Convert inputs that are not Tensors to arrays of the device; Python scalars stay scalars.

    Integers that go with a Python float are made the default float dtype, as in PyTorch, except in
    comparisons, which are exact.
    """
    if device is None:
        device = default_device()
        if all(isinstance(value, (*SCALARS, np.generic)) or value is None for value in arrays):
            arrays[0] = device.from_numpy(as_numpy(op.name, arrays[0]))
    for i, value in enumerate(arrays):
        if type(value) is float or type(value) is int or value is None:
            continue
        if isinstance(value, np.generic):
            arrays[i] = host_array(value, op.name).item()  # weakly typed, as a Python scalar
        elif isinstance(value, int) and type(value) is not bool:  # a class of its own, as x.size
            arrays[i] = int(value)
        elif isinstance(value, np.ndarray) or not isinstance(value, (device.array_type, *SCALARS)):
            arrays[i] = device.from_numpy(as_numpy(op.name, value))
            if bus.listeners and here.recorder is not None:
                here.recorder.literal(value, device, arrays[i])
    if op.backward is not None and any(type(a) in (float, complex) for a in arrays):
        _to_default(op, arrays, device)
    strong = [a for a in arrays if isinstance(a, device.array_type)]
    if any(a.dtype.kind == "V" for a in strong):  # ml_dtypes: NumPy would promote a Python scalar
        dtype = np.result_type(*[a.dtype for a in strong if a.dtype.kind in "fVc"])
        for i, value in enumerate(arrays):
            if type(value) in (int, float):
                arrays[i] = _adopted(np.asarray(value, dtype), device)
    return device


def _adopted(values: np.ndarray, device: Device) -> Any:
    """A number on a device, where it is never written."""
    values.flags.writeable = False
    made = device.from_numpy(values)
    if bus.listeners and here.recorder is not None and made is not values:
        here.recorder.constant(device, values, made)
    return made


def as_numpy(name: str, value: object) -> np.ndarray:
    """Numbers, lists or an array on the host as an array; numbers in gtensor's default dtypes."""
    array = host_array(plain_values(value, name), name)
    kind = None if isinstance(value, np.ndarray) else _OF_PYTHON.get(array.dtype)
    return array if kind is None else array.astype(DEFAULTS[kind], copy=False)


def _to_floating(arrays: list[Any], device: Device, name: str) -> None:
    """Convert integer arrays to the default float dtype, for ops with `floating=True`."""
    for i, value in enumerate(arrays):
        if isinstance(value, device.array_type) and value.dtype.kind in INTEGERS:
            arrays[i] = run_noted(name, device, device.copy, value, DEFAULTS["f"], name)


def _to_default(op: Op, arrays: list[Any], device: Device) -> None:
    """Convert integer arrays to the default float dtype, unless one of the arrays is floating."""
    places = [i for i, value in enumerate(arrays)
              if i not in op.constants and isinstance(value, device.array_type)]
    if all(arrays[i].dtype.kind in INTEGERS for i in places):
        for i in places:
            arrays[i] = run_noted(op.name, device, device.copy, arrays[i], DEFAULTS["f"], op.name)


def storage_of(out: Array, inputs: tuple[object, ...]) -> Storage:
    """The storage of a view op's output: that of the input it views, else a new one."""
    root = owner(out)
    for value in inputs:
        if isinstance(value, Tensor) and owner(value._array) is root:
            return value._own_storage()
    if root is not out:
        return GIVEN
    return FRESH if isinstance(out, np.ndarray) else FRESH_ELSEWHERE
