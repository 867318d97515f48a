"""Making tensors: from data, filled, counted. `gtensor.random` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import (
    DEFAULTS,
    Device,
    cuda_device,
    element_type,
    get_default_dtype,
    get_device,
    host_array,
)
from gtensor.creation.foreign import adopted, imported
from gtensor.engine.handle.context import is_grad_enabled
from gtensor.engine.handle.errors import GradientError
from gtensor.engine.handle.interchange import given_values, plain_values
from gtensor.engine.handle.namespaces import recorded
from gtensor.engine.handle.tensor import Tensor, is_floating, wrap
from gtensor.engine.tape.execute import run_noted
from gtensor.system.bus import bus, here

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike

DeviceLike = Device | str | None
Shape = int | Sequence[int]


def tensor(
    data: Any, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False, *, pin_memory: bool = False,
) -> Tensor:
    """A tensor in new memory with the values of `data` (nested lists, array, tensor, number).

    Python floats become the default dtype (float32, see `set_default_dtype`), complex numbers
    complex64, integers int64, unless `dtype` says otherwise; arrays keep their dtype. Without
    `device`, a tensor's or CuPy array's own device, else the default one. Gradients flow through
    the copy of a tensor, where PyTorch's `tensor` cuts; detach() it for a constant. `pin_memory`,
    here and in `empty`, `full`, `zeros` and `ones`, is PyTorch's and changes nothing: copies to a
    GPU pass through pinned memory of CuPy's.

    Raises TypeError if `data` is not numeric, or for integers with `requires_grad`; GradientError
    for `requires_grad=True` with a tensor that already requires a gradient, and for a list with
    such a tensor in it.
    """
    place = _place(data, device)
    source = _values(data, dtype)
    wanted = source.dtype if dtype is None else element_type(dtype)
    _check_differentiable(wanted, requires_grad)
    if (isinstance(data, Tensor) and data._current_node("tensor()") is not None
            and is_grad_enabled()):
        if requires_grad:
            raise GradientError("tensor() was asked for a leaf (requires_grad=True) of a tensor "
                                "that requires a gradient, which would be lost; detach() it first")
        return asarray(data, wanted, place, copy=True)
    result = wrap(place.copy(_on(place, source), dtype=wanted, label="tensor"), place)
    if bus.listeners and here.recorder is not None:
        here.recorder.literal(data, place, result._array)
    return result._begin_as_leaf() if requires_grad else result


def asarray(
    obj: Any, /, dtype: DTypeLike | None = None, device: DeviceLike = None, copy: bool | None = None
) -> Tensor:
    """A tensor over `obj` without a copy where possible: it then shares the caller's memory.

    A tensor of the right dtype and device is returned as it is, and gradients flow through its
    copy. `copy=True` always copies, `copy=False` never: it raises ValueError where a copy would be
    needed.
    """
    if device is None and dtype is None and not copy and isinstance(obj, Tensor):
        return obj
    place = _place(obj, device)
    dtype = None if dtype is None else element_type(dtype)
    if isinstance(obj, Tensor):
        fits = obj.device is place and dtype in (None, obj.dtype)
        if copy is False and not fits:
            _refuse_copy(obj, dtype, place)
        result = obj.to(place)
        if copy and fits:
            return result.clone()
        return result if fits or dtype is None else result.to(dtype)
    if copy:
        return tensor(obj, dtype, place)
    source = _values(obj, dtype)
    array = _on(place, source)
    if copy is False and (array is not obj or (dtype is not None and array.dtype != dtype)):
        _refuse_copy(obj, dtype, place)
    cast = dtype is not None and array.dtype != dtype
    if cast:
        array = place.copy(array, dtype=dtype, label="asarray")
    if bus.listeners and here.recorder is not None:
        here.recorder.literal(obj, place, array)
    return wrap(array, place) if cast else adopted(array, place)


def adopt_argument(value: Any, reader: str, device: Device | None, copy: bool) -> Tensor:
    """What `asarray` makes of an argument of the `reader`, on `device`; CuPy's are where they are.

    Raises TypeError or ValueError, which names the reader, for what is no array of numbers.
    """
    place = _place(value, None if hasattr(value, "__cuda_array_interface__") else device)
    array = _on(place, _values(value, None, reader))
    return wrap(place.copy(array, label=reader), place) if copy else adopted(array, place)


def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """A tensor sharing the memory of any object with `__dlpack__` (PyTorch, JAX, CuPy, NumPy).

    A copy is made where `device` or `copy=True` ask for one; `copy=False` raises ValueError then.
    On CUDA an op on shared memory waits for the work of all streams (`gtensor.execution.streams`).
    Raises TypeError for an object without `__dlpack__`, or memory that is neither CPU nor CUDA.
    """
    found = imported(x, copy)
    if device is None or found.device is get_device(device):
        return found
    if copy is False:
        _refuse_copy(x, None, get_device(device))
    return found.to(get_device(device))


# -- filled ----------------------------------------------------------------------------------------


def full(
    shape: Shape, fill_value: complex, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False, *, pin_memory: bool = False,
) -> Tensor:
    """A tensor of `shape` filled with a number (a Python one or a 0-d tensor).

    Without dtype: the default dtype, complex64, int64 or bool, by the number; a 0-d tensor's own.
    Raises TypeError for a value with axes.
    """
    place = fill_value.device if isinstance(fill_value, Tensor) else get_device(device)
    value = plain_values(given_values(fill_value, place, "full"), "full")
    if getattr(value, "ndim", 0):
        raise TypeError(f"full was given fill_value of shape {value.shape}; wanted a number or a "
                        "0-d tensor")
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, Tensor) else _values(value, None).dtype
    result = empty(shape, dtype=dtype, device=device, requires_grad=requires_grad)
    run_noted("full", result.device, result.device.fill, result._array, value)
    return result


def empty(
    shape: Shape, *more: Any, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:
    """An uninitialized tensor; of the default dtype (float32) unless dtype is given.

    `more`: further sizes, `empty(2, 3)` is `empty((2, 3))`; or dtype, device and requires_grad by
    position.
    """
    shape, dtype, device, requires_grad = _called(
        shape, more, dtype=dtype, device=device, requires_grad=requires_grad)
    sizes = shape_of(shape)
    wanted = get_default_dtype() if dtype is None else element_type(dtype)
    _check_differentiable(wanted, requires_grad)
    place = get_device(device)
    result = wrap(run_noted("empty", place, place.empty, sizes, wanted, "empty"), place)
    return result._begin_as_leaf() if requires_grad else result


def zeros(
    shape: Shape, *more: Any, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:
    """A tensor of zeros; of the default dtype (float32) unless given. See `empty` for `more`."""
    return _filled(0, shape, more, dtype, device, requires_grad)


def ones(
    shape: Shape, *more: Any, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:
    """A tensor of ones; of the default dtype (float32) unless given. See `empty` for `more`."""
    return _filled(1, shape, more, dtype, device, requires_grad)


def empty_like(
    x: Tensor, /, *, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """An uninitialized tensor of x's shape, dtype and device, unless given."""
    x = asarray(x)
    return empty(x.shape, dtype=x.dtype if dtype is None else dtype,
                 device=x.device if device is None else device, requires_grad=requires_grad)


def full_like(
    x: Tensor, /, fill_value: complex, *, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of x's shape, dtype and device, unless given, filled with a number.

    Raises TypeError for a value that is no number, or that the dtype cannot hold.
    """
    x = asarray(x)
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype,
                device=x.device if device is None else device, requires_grad=requires_grad)


def zeros_like(
    x: Tensor, /, *, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Zeros of x's shape, dtype and device, unless given."""
    x = asarray(x)
    return _filled(0, x.shape, (), x.dtype if dtype is None else dtype,
                   x.device if device is None else device, requires_grad)


def ones_like(
    x: Tensor, /, *, dtype: DTypeLike | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Ones of x's shape, dtype and device, unless given."""
    x = asarray(x)
    return _filled(1, x.shape, (), x.dtype if dtype is None else dtype,
                   x.device if device is None else device, requires_grad)


# -- counted ---------------------------------------------------------------------------------------


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> Tensor:
    """start, start + step, ... below stop (or 0, 1, ... below start).

    Without dtype, int64 for integers, else the default dtype (float32).

    Raises ValueError for a step of 0.
    """
    begin, end, step = (plain_values(v, "arange") for v in (
        (0, start, step) if stop is None else (start, stop, step)))
    if step == 0:
        raise ValueError("arange with step 0; wanted a step that is not 0")
    if dtype is not None:
        dtype = element_type(dtype)
    elif not all(isinstance(v, Integral) for v in (begin, end, step)):
        dtype = get_default_dtype()
    return _made("arange", device, lambda xp: xp.arange(begin, end, step, dtype=dtype))


def linspace(
    start: complex, stop: complex, /, num: int | None = None, *, dtype: DTypeLike | None = None,
    device: DeviceLike = None, endpoint: bool = True, steps: int | None = None,
) -> Tensor:
    """`num` evenly spaced values from start to stop, which is the last one if `endpoint`.

    The default dtype (float32) unless dtype is given, complex if start or stop is. The ends may be
    0-d tensors, to which gradients flow. `steps` is another name of `num`.

    Raises ValueError for a negative `num`, TypeError unless one is given.
    """
    if (num is None) is (steps is None):
        raise TypeError(f"linspace was given num={num} and steps={steps}; wanted one of them")
    num = steps if num is None else num
    assert num is not None
    if isinstance(start, Tensor) or isinstance(stop, Tensor):
        return _between(start, stop, num, dtype, device, endpoint)
    if num < 0:
        raise ValueError(f"linspace of {num} values; wanted 0 or more")
    if np.ndim(start) or np.ndim(stop):
        raise TypeError(f"linspace was given ends of shapes {np.shape(start)} and {np.shape(stop)};"
                        " wanted numbers or 0-d tensors")
    default = DEFAULTS["c" if isinstance(start + stop, complex) else "f"]
    wanted = default if dtype is None else element_type(dtype)
    return _made("linspace", device, lambda xp: xp.linspace(
        start, stop, num, dtype=wanted, endpoint=endpoint))


def _between(
    start: object, stop: object, num: int, dtype: DTypeLike | None, device: DeviceLike,
    endpoint: bool
) -> Tensor:
    """linspace of 0-d tensors, by ops on them; without dtype in theirs (integers: the default)."""
    ends = [x for x in (start, stop) if isinstance(x, Tensor)]
    if any(x.ndim for x in ends):
        raise ValueError(f"linspace was given ends of shapes {[x.shape for x in ends]}; wanted "
                         "numbers or 0-d tensors")
    place = get_device(device) if device is not None else ends[0].device
    floats = [x.dtype for x in ends if x.dtype.kind in "fVc"]
    inner = np.result_type(*floats) if floats else get_default_dtype()
    weights = linspace(0.0, 1.0, num, dtype=inner, device=place, endpoint=endpoint)
    values = recorded.add(recorded.multiply(1.0 - weights, start), recorded.multiply(weights, stop))
    return values if dtype is None else values.astype(dtype, copy=False)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike | None = None,
    device: DeviceLike = None,
) -> Tensor:
    """Ones on the k-th diagonal, else zeros, (n_rows, n_cols or n_rows); of the default dtype.

    Raises ValueError for a negative number of rows or columns.
    """
    wanted = get_default_dtype() if dtype is None else element_type(dtype)
    return _made("eye", device, lambda xp: xp.eye(n_rows, n_cols, k=k, dtype=wanted))


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinate grids of 1-d tensors of one dtype, as views: of axis i the i-th ("ij").

    With "xy" the first two axes are swapped, as in a picture's (row, column). PyTorch's default is
    "ij".

    Raises ValueError for tensors of another number of axes or of several dtypes, and for another
    `indexing`.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid was given indexing={indexing!r}; wanted 'xy' or 'ij'")
    arrays = tuple(map(asarray, arrays))
    wrong = [a.shape for a in arrays if a.ndim != 1]
    if wrong or len({a.dtype for a in arrays}) > 1:
        raise ValueError(f"meshgrid was given tensors of shapes {[a.shape for a in arrays]} and "
                         f"dtypes {[str(a.dtype) for a in arrays]}; wanted 1-d ones of one dtype")
    places = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        places[:2] = 1, 0
    shape = [0] * len(arrays)
    for place, a in zip(places, arrays, strict=True):
        shape[place] = a.size
    return [recorded.broadcast_to(
        recorded.reshape(a, shape=tuple(a.size if i == place else 1 for i in range(len(shape)))),
        shape=tuple(shape)) for place, a in zip(places, arrays, strict=True)]


# -- what is common --------------------------------------------------------------------------------


def _made(name: str, device: DeviceLike, function: Callable[[Any], Any]) -> Tensor:
    """An array made by the device's own library, in memory of the installed resource."""
    place = get_device(device)
    path = place.path(name, function)
    return wrap(run_noted(name, place, lambda: place.copy(path(place.xp), label=name)
                          if place.type == "cpu" else path(place.xp)), place)


def _filled(
    value: int, shape: Any, more: tuple[Any, ...], dtype: DTypeLike | None, device: DeviceLike,
    requires_grad: bool,
) -> Tensor:
    """`full` of 0 or 1, which takes no checks of the value."""
    if more:
        shape, dtype, device, requires_grad = _called(
            shape, more, dtype=dtype, device=device, requires_grad=requires_grad)
    sizes = shape_of(shape)
    wanted = get_default_dtype() if dtype is None else element_type(dtype)
    if requires_grad:
        _check_differentiable(wanted, requires_grad)
    place = get_device(device)
    if bus.listeners:
        array = run_noted("empty", place, place.empty, sizes, wanted, "empty")
        run_noted("full", place, place.fill, array, value)
    else:
        array = place.fill(place.empty(sizes, wanted, "empty"), value)
    result = wrap(array, place)
    return result._begin_as_leaf() if requires_grad else result


def _called(shape: Any, more: tuple[Any, ...], **named: Any) -> tuple[Any, ...]:
    """The shape and the options of `f(2, 3)`, or of `f(shape, dtype, device, requires_grad)`."""
    if more and isinstance(more[0], (int, np.integer)) and not isinstance(more[0], bool):
        return (shape, *more), *named.values()
    if len(more) > len(named):
        raise TypeError(f"{len(more)} arguments given after the shape {shape}; wanted at most "
                        f"{len(named)}: {', '.join(named)}")
    return shape, *(named | dict(zip(named, more, strict=False))).values()


def sizes_of(given: tuple[Any, ...]) -> Any:
    """The shape of `f(2, 3)` or `f((2, 3))`."""
    return given[0] if len(given) == 1 else given


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of sizes. Raises TypeError or ValueError if it is not a shape."""
    if type(shape) is tuple:
        for n in shape:
            if type(n) is not int or n < 0:
                break
        else:
            return shape
    try:
        if isinstance(shape, (str, bytes, set, dict)):
            raise TypeError
        sizes = (index(shape),) if hasattr(shape, "__index__") else tuple(index(n) for n in shape)
    except TypeError:
        raise TypeError(f"shape {shape!r} given; wanted a whole number, or a tuple of them such "
                        "as (2, 3)") from None
    if any(n < 0 for n in sizes):
        raise ValueError(f"shape {sizes} given; wanted sizes of 0 or more")
    return sizes


def _refuse_copy(data: object, dtype: DTypeLike | None, place: Device) -> None:
    raise ValueError(f"copy=False was asked of {type(data).__name__} for dtype "
                     f"{dtype or 'as given'} on {place}; that needs a copy")


def _place(data: object, device: DeviceLike) -> Device:
    if device is None and isinstance(data, Tensor):
        return data.device
    if device is None and hasattr(data, "__cuda_array_interface__"):
        return _home(data)
    return get_device(device)


def _home(data: Any) -> Device:
    """The CUDA device on which an array of CuPy's or of another library lies."""
    return cuda_device(data.device.id) if hasattr(data.device, "id") else get_device("cuda")


def _values(data: object, dtype: DTypeLike | None, reader: str = "a tensor") -> Any:
    """The NumPy or CuPy array behind `data`. Errors name the `reader`."""
    if isinstance(data, Tensor):
        return data._array
    if hasattr(data, "__cuda_array_interface__"):
        return data
    python = not hasattr(data, "dtype") and not hasattr(data, "__array__")
    if isinstance(data, (list, tuple)):
        data = plain_values(data, reader)
    array = host_array(data, reader)
    if python and dtype is None and array.dtype.kind in DEFAULTS:
        return array.astype(DEFAULTS[array.dtype.kind])
    return array


def _on(place: Device, source: Any) -> Any:
    """`source` as an array of the device; copied only if it lives elsewhere."""
    if isinstance(source, np.ndarray):
        return place.from_numpy(source)
    home = _home(source)
    if home is not place:
        return place.from_numpy(home.to_numpy(source))
    return source if isinstance(source, place.array_type) else place.from_numpy(source)


def _check_differentiable(dtype: np.dtype, requires_grad: bool) -> None:
    if requires_grad and not is_floating(dtype):
        raise TypeError(f"requires_grad was asked of a tensor of dtype {dtype}; gradients need a "
                        "floating-point dtype")
