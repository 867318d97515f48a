"""Keys of x[key]: their parts, and the selection's shape, computed without the data.

An op's parameter `key` holds integers, slices, None and an ellipsis, as plain Python values; the
index arrays are inputs of the op, and ARRAY stands in the key where each of them belongs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import DeviceError, refuse_mask
from gtensor.engine.handle.context import grad_enabled
from gtensor.engine.handle.interchange import plain_values
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.tape.levels import Traced
from gtensor.engine.tape.samples import Draw, Sample, normal
from gtensor.settings import settings
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from types import ModuleType

    from gtensor.backend import Device
    from gtensor.backend.typing import Array

Key = tuple[Any, ...]
ARRAY = "array"  # in a key: the next of the op's index arrays
_BASIC = (int, np.integer, slice, type(None), EllipsisType)
PLAIN = frozenset({int, type(None), EllipsisType})  # types of parts that are parameters as they are
BOUNDS = frozenset({int, type(None)})  # and of the bounds of such a slice
PLAIN_KEY = """
parts = key if type(key) is tuple else (key,)
for part in parts:
    if type(part) not in PLAIN and (
            type(part) is not slice or type(part.start) not in BOUNDS
            or type(part.stop) not in BOUNDS or type(part.step) not in BOUNDS):
        break
else:
"""  # the text of `normalized` for a key of plain parts, where it goes on
_FULL = slice(None)


def is_basic(part: object) -> bool:
    """Whether a part of a key is an integer, a slice, None or an ellipsis: such keys give views."""
    return isinstance(part, _BASIC) and not isinstance(part, bool)


def _plain(part: Any) -> bool:
    """Whether a part can be a parameter as it is."""
    kind = type(part)
    return kind in PLAIN or (
        kind is slice and type(part.start) in BOUNDS and type(part.stop) in BOUNDS
        and type(part.step) in BOUNDS)


def _made_plain(part: Any) -> Any:
    """A basic part with ints for other integers, which may be arrays and change later."""
    if isinstance(part, slice):
        bounds = (part.start, part.stop, part.step)
        return slice(*(n if type(n) in BOUNDS else operator.index(n) for n in bounds))
    return int(part) if isinstance(part, np.integer) else part


def normalized(x: Tensor, key: object, recorded: bool) -> tuple[Key, tuple[Tensor, ...]]:
    """The key with ARRAY for each index array, and these, on x's device.

    Index arrays of a recorded op are copied: its backward needs them as they are now. Raises
    IndexError for what cannot be an index.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if all(map(_plain, parts)):
        return parts, ()
    copied = recorded and grad_enabled()
    made: list[Any] = []
    indices: list[Tensor] = []
    try:
        for part in parts:
            found = _made_plain(part) if is_basic(part) else _index(x, part, copied)
            if isinstance(found, Tensor):
                indices.append(found)
                found = ARRAY
            made.append(found)
    except (ValueError, TypeError) as error:  # NumPy makes no array of it
        if isinstance(error, DeviceError):
            raise
        raise IndexError(f"{described(key, x.shape)}: {error}") from None
    return tuple(made), tuple(indices)


def filled(key: Key, indices: tuple[Any, ...]) -> Key:
    """The key with the index arrays in their places."""
    if len(key) == len(indices):
        return indices
    following = iter(indices)
    return tuple(next(following) if isinstance(p, str) else p for p in key)


def sample(shapes: tuple[tuple[int, ...], ...], key: Key, **params: object) -> Sample:
    """Of an op on arrays of these shapes that is indexed by a key as NumPy takes it."""
    arrays = [p for p in key if not is_basic(p)]
    return Sample(
        (*shapes, *(a.shape for a in arrays)), (*(normal,) * len(shapes), *map(_drawn, arrays)),
        {"key": tuple(p if is_basic(p) else ARRAY for p in key), **params})


def _drawn(array: np.ndarray) -> Draw:
    return lambda rng, shape: array.copy()


def _index(x: Tensor, part: Any, copied: bool) -> Tensor | int:
    """An index as a tensor on x's device; on the host a 0-d integer becomes an int."""
    if isinstance(part, Traced):  # without memory, also to be written
        _refuse_kind(part.dtype)
        return part
    array = part._array if isinstance(part, Tensor) else part
    refuse_mask(array, "an index")
    if not isinstance(array, x.device.array_type):
        if isinstance(part, Tensor) and part.device.type != "cpu":
            raise DeviceError(f"an index on {part.device} given for a tensor on {x.device}; move "
                              f"it with .to({str(x.device)!r}) first")
        array = np.asarray(plain_values(array, "an index"))
        if array.size == 0 and not hasattr(part, "dtype"):
            array = array.astype(np.int64)  # an empty list
        _refuse_kind(array.dtype)  # of which CuPy may have none
        array = x.device.from_numpy(array)
        if bus.listeners and here.recorder is not None:
            here.recorder.literal(part, x.device, array)
    _refuse_kind(array.dtype)
    if not array.ndim and array.dtype.kind != "b" and x.device.type == "cpu":
        return int(part) if isinstance(part, Tensor) else int(array)  # a GPU would be waited for
    if copied:
        return wrap(x.device.copy(array, label="index"), x.device)
    x.device.order((array,))  # the shape of a selection may be read from it, outside of any op
    return part if isinstance(part, Tensor) else wrap(array, x.device)


def _refuse_kind(dtype: np.dtype) -> None:
    if dtype.kind not in "iub":
        raise IndexError(f"an index of dtype {dtype} given; wanted integers or booleans")


def described(key: object, shape: tuple[int, ...]) -> str:
    """The key and the shape that it was used on, for an error: arrays by dtype and shape."""
    parts = [_described(p) for p in (key if isinstance(key, tuple) else (key,))]
    return f"index [{', '.join(parts)}] of a tensor of shape {shape}"


def _described(part: Any) -> str:
    if part is ...:
        return "..."
    if isinstance(part, slice):
        ends = ["" if n is None else str(n) for n in (part.start, part.stop, part.step)]
        return ":".join(ends if part.step is not None else ends[:2])
    if hasattr(part, "dtype") and hasattr(part, "shape") and part.shape:
        return f"{part.dtype} array of shape {part.shape}"
    return repr(part)


def rows_of(x: Array, key: Key) -> tuple[Array, Array] | None:
    """x with some leading axes as one and the places along it, if a lone host mask is the key.

    A mask tests every element, and NumPy's branches on random ones cost more than the places.
    """
    if len(key) != 1 or not isinstance(key[0], np.ndarray) or key[0].dtype.kind != "b":
        return None
    mask = key[0]
    if not mask.ndim or mask.shape != x.shape[:mask.ndim] or not x.flags.c_contiguous:
        return None
    return x.reshape(mask.size, *x.shape[mask.ndim:]), np.flatnonzero(mask)


def unique(indices: Iterable[Any]) -> bool:
    """Whether no place can be selected twice: arrays are masks, or integers without axes."""
    return all(p.dtype.kind == "b" or not p.ndim for p in indices)


def selected_shape(key: Key, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what a key with index arrays selects. Raises IndexError as NumPy does."""
    array = key[0]
    if len(key) == 1 and array.dtype.kind == "b" and array.shape == shape[:array.ndim]:
        return (int(np.count_nonzero(array)), *shape[array.ndim:])
    return Selection(key, shape).shape


def are_checked(device: Device) -> bool:
    """Whether an op looks at the values of indices on this device: on a GPU, where it waits for
    them, only with GTENSOR_DEBUG, and not in a capture, in which nothing can be waited for."""
    return device.type == "cpu" or bool(settings.debug) and not device.capturing()


def refuse_places(device: Device, key: Key, shape: tuple[int, ...]) -> None:
    """Raise IndexError for an index out of range on a GPU, where indices are checked.

    Otherwise only for any index of an axis of size 0, by which kernels would divide.
    """
    if device.type != "cpu":
        if are_checked(device):
            key = tuple([device.to_numpy(p) if isinstance(p, device.array_type) else p
                         for p in key])
            Selection(key, shape)
        elif 0 in shape:
            Selection(key, shape)


class Selection:
    """What a key with index arrays selects from an array of some shape, by NumPy's rules.

    view     slices and new axes, with full slices where arrays index; x[view] is a view
    axes     the axes of that view that arrays index
    indices  an integer array (or integer) for each of them, which broadcast to `lead`
    lead     the shape that the index arrays have together
    place    the axis of the selection at which `lead` stands
    shape    of the selection

    Raises IndexError as NumPy does; on a GPU the values of indices are not checked, except that an
    axis of size 0 has no index.
    """

    def __init__(self, key: Key, shape: tuple[int, ...]) -> None:
        self._sizes = shape
        self._view: list[slice | None] = []
        self._rest: list[int] = []  # sizes of the result's axes that are not `lead`
        self._taken = 0  # axes of x that the key has dealt with
        self._open: bool | None = None  # whether the last part was an index; None: no index yet
        self.axes: list[int] = []
        self.indices: list[Array | int] = []
        self.place = 0
        missing = len(shape) - sum(map(_axes_of, key))
        if missing < 0 or sum(p is ... for p in key) > 1:
            raise IndexError(f"too many indices for {len(shape)} dimensions" if missing < 0 else
                             "more than one ellipsis")
        for part in key if any(p is ... for p in key) else (*key, ...):
            self._add(part, missing)
        try:
            self.lead = np.broadcast_shapes(*(np.shape(i) for i in self.indices))
        except ValueError:
            raise IndexError("index arrays of shapes "
                             f"{', '.join(str(np.shape(i)) for i in self.indices)} do not "
                             "broadcast together") from None
        self.view = tuple(self._view)
        self.shape = (*self._rest[:self.place], *self.lead, *self._rest[self.place:])

    def _add(self, part: Any, missing: int) -> None:
        if part is None or part is ... or isinstance(part, slice):
            self._open = False if self._open is not None else None
            for p in (_FULL,) * missing if part is ... else (part,):
                self._keep(p)
            return
        if self._open is None:
            self.place = len(self._rest)
        elif not self._open:
            self.place = 0  # indices on both sides of a slice: their axes come first
        self._open = True
        if getattr(part, "dtype", None) != np.bool_:
            self._pick(part)
        elif part.ndim:
            size = self._sizes[self._taken:self._taken + part.ndim]
            if part.shape != size:
                raise IndexError(f"a mask of shape {part.shape} for axes of sizes {size}")
            for index in part.nonzero():
                self._pick(index)
        else:  # a new axis, of which True takes the one element and False none
            self._view.append(None)
            self.axes.append(len(self._view) - 1)
            self.indices.append(part.reshape(1).nonzero()[0])

    def _keep(self, part: slice | None) -> None:
        """A slice or a new axis."""
        self._view.append(part)
        if part is None:
            self._rest.append(1)
        else:
            self._rest.append(len(range(*part.indices(self._sizes[self._taken]))))
            self._taken += 1

    def _pick(self, index: Array | int) -> None:
        """One axis by integers."""
        size = self._sizes[self._taken]
        if not size and (isinstance(index, int) or index.size):
            raise IndexError(f"any index is out of bounds for axis {self._taken} with size 0")
        if isinstance(index, (int, np.integer, np.ndarray)) and np.size(index):
            low, high = int(np.min(index)), int(np.max(index))
            if low < -size or high >= size:
                raise IndexError(f"index {low if low < -size else high} is out of bounds for axis "
                                 f"{self._taken} with size {size}")
        self._view.append(_FULL)
        self.axes.append(len(self._view) - 1)
        self.indices.append(index)
        self._taken += 1

    def last_writes(self, xp: ModuleType) -> tuple[Array, Array]:
        """The writes x[key] = v, numbered, and for each the number of the last to its place.

        Both of the shape `lead`, in whose order NumPy writes. A GPU's threads write in no order,
        so there the largest number is looked for.
        """
        sizes = iter(self._sizes)
        whole = [1 if p is None else next(sizes) for p in self.view]
        stamp = xp.empty([whole[a] for a in self.axes], np.int64)
        number = xp.arange(prod(self.lead)).reshape(self.lead)
        indices = tuple(self.indices)
        if xp is np:
            stamp[indices] = number
        else:
            stamp[indices] = 0  # what no write reaches stays untouched
            xp.maximum.at(stamp, indices, number)
        return number, stamp[indices]

    def along(self, a: Array) -> Array:
        """An array of the shape `lead`, reshaped so that it broadcasts to the selection's shape."""
        return a.reshape((*self.lead, *(1,) * (len(self._rest) - self.place)))


def _axes_of(part: Any) -> int:
    """How many axes of x a part of a key deals with."""
    if part is None or part is ...:
        return 0
    return part.ndim if getattr(part, "dtype", None) == np.bool_ else 1
