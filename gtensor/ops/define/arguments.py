"""Checks of arguments that several functions share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from gtensor.backend import get_default_dtype
from gtensor.creation.dtypes import result_type
from gtensor.creation.new_tensors import adopt_argument, asarray
from gtensor.engine.handle.context import current_casts, is_grad_enabled
from gtensor.engine.handle.tensor import Tensor
from gtensor.system.written_code import entrance_text, written_when_called

if TYPE_CHECKING:
    from gtensor.engine.handle.tensor import Operand

_FLOAT32 = np.dtype(np.float32)
REDUCTIONS = ("none", "mean", "sum")
F = TypeVar("F", bound=Callable[..., Any])

# -- what may be given for a Tensor ----------------------------------------------------------------

_NUMBERS = (bool, int, float, complex)
_NONE = type(None)
# Annotations of arrays -> what of them is taken as it is. A number beside a Tensor stays one where
# ops take it, which give it the Tensor's dtype.
_ARRAYS: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,), "Tensor | None": (Tensor, _NONE),
    "Operand": (Tensor, *_NUMBERS), "Operand | None": (Tensor, *_NUMBERS, _NONE),
    "Tensor | float": (Tensor, *_NUMBERS)}
_WRITTEN = ("out", "running_mean", "running_var", "num_batches_tracked")  # these must be Tensors


def takes_arrays(function: F) -> F:
    """The function, which may be given for a Tensor what `gt.asarray` takes.

    Numbers, lists, and arrays of NumPy and CuPy become Tensors on the device of those that are
    (else of CuPy's arrays, else the default device); they have no gradient. A float takes the dtype
    of the floating Tensors, as beside them in ops. A call with Tensors alone costs one check of
    each: the text of the call is the function's signature, written when it is first called.
    """
    return written_when_called(function, partial(_text_of, function))  # type: ignore


def _text_of(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """The call that converts, and its scope."""
    arrays = {p.name: _ARRAYS[p.annotation] for p in inspect.signature(function).parameters.values()
              if p.annotation in _ARRAYS and p.kind is not p.VAR_POSITIONAL
              and p.name not in _WRITTEN}
    right = " and ".join(f"isinstance({name}, TAKES_{name})" for name in arrays)
    names = "".join(f"{name}, " for name in arrays)
    first = (f"        if not ({right}):\n"
             f"            {names}= AS_TENSORS({function.__name__!r}, LABELS, ({names}), TAKES)\n")
    return entrance_text(function, first, {
        "AS_TENSORS": as_tensors, "LABELS": tuple(arrays), "TAKES": tuple(arrays.values()),
        **{f"TAKES_{name}": types for name, types in arrays.items()}})


def as_tensors(
    name: str, labels: Sequence[str], values: Sequence[Any], takes: Sequence[tuple[type, ...]]
) -> list[Any]:
    """Each value as a Tensor on one device, or as it is if it is None or a number that is taken.

    Raises TypeError or ValueError, which names the function and the argument, for what is no array
    of numbers.
    """
    tensors = [v for v in values if isinstance(v, Tensor)]
    device = tensors[0].device if tensors else None
    # A record would save the caller's memory, whose writes no version counts.
    copy = is_grad_enabled() and any(x.requires_grad for x in tensors)
    made = list(values)
    for i in sorted(range(len(values)), key=lambda i: not _on_gpu(values[i])):
        value = values[i]
        if isinstance(value, np.generic) and tensors:
            made[i] = value.item()  # weakly typed, as beside them in ops
        elif not (isinstance(value, Tensor) or type(value) in _NUMBERS or (
                value is None and _NONE in takes[i])):
            made[i] = found = adopt_argument(value, f"{name} ({labels[i]})", device, copy)
            device = device or found.device
    arrays = [v for v in made if isinstance(v, Tensor)]
    dtypes = [x.dtype for x in arrays if x.dtype.kind in "fVc"]
    for i, value in enumerate(made):
        if type(value) in _NUMBERS and not (arrays and float in takes[i]):
            of_others = dtypes and isinstance(value, (float, complex))
            made[i] = asarray(value, result_type(*dtypes, value) if of_others else None, device)
            arrays.append(made[i])
    return made


def _on_gpu(value: object) -> bool:
    return not isinstance(value, Tensor) and hasattr(value, "__cuda_array_interface__")


def all_tensors(name: str, label: str, arrays: Iterable[Any]) -> list[Tensor]:
    """The Tensors of a function that takes any number of them, converted as by `takes_arrays`."""
    try:
        values = list(arrays)
    except TypeError:
        raise TypeError(f"{name} was given {label} of type {type(arrays).__name__}; wanted a "
                        "sequence of tensors") from None
    for value in values:
        if not isinstance(value, Tensor):
            labels = [f"{label}[{i}]" for i in range(len(values))]
            return as_tensors(name, labels, values, [(Tensor,)] * len(values))
    return values


# -- checks ----------------------------------------------------------------------------------------


def refuse_unsupported(wanted: object, name: str, **given: object) -> None:
    """Raise ValueError unless every given argument is `wanted`, PyTorch's default.

    The arguments are kept in the signatures so that positional arguments mean the same.
    """
    for argument, value in given.items():
        plain = value is None or isinstance(value, (int, float, str, tuple))
        if not plain or value != wanted:
            shown = f"={value!r}" if plain else f" of type {type(value).__name__}"
            raise ValueError(f"{name} was given {argument}{shown}; wanted {wanted!r}: nothing else "
                             "is supported")


def given_axis(name: str, axis: Any, dim: Any, default: Any = None, word: str = "dim") -> Any:
    """`dim`, PyTorch's word for `axis`. Raises TypeError if an axis is given, too."""
    if axis != default:
        raise TypeError(f"{name} was given axis={axis} and {word}={dim}, two words for one thing; "
                        "wanted one of them")
    return dim


def torch_words(
    name: str, axis: Any, dim: Any, keepdims: bool, keepdim: bool | None
) -> tuple[Any, bool]:
    """The axis and whether to keep it, given by PyTorch's words. TypeError for both words of one.
    """
    if keepdims and keepdim is not None:
        raise TypeError(f"{name} was given keepdims={keepdims} and keepdim={keepdim}, two words "
                        "for one thing; wanted one of them")
    return (axis if dim is None else given_axis(name, axis, dim),
            keepdims if keepdim is None else keepdim)


def refuse_pair(name: str, dim: Any) -> NoReturn:
    """Raise TypeError for `dim` of an extreme, with which PyTorch gives the places, too."""
    raise TypeError(f"{name} was given dim={dim}, for which PyTorch gives the values and their "
                    f"places; wanted {name}(x, axis={dim}), and arg{name}(x, axis={dim}) for the "
                    "places")


def floats(x: Operand) -> Tensor:
    """x as a tensor, integers and booleans in the default dtype."""
    x = asarray(x)
    return x if x.dtype.kind in "fVc" else x.astype(get_default_dtype())


def want_tensors(name: str, **inputs: Tensor | None) -> None:
    """Raise TypeError unless the inputs that are there are Tensors."""
    for label, given in inputs.items():
        if given is not None and not isinstance(given, Tensor):
            raise TypeError(f"{name} was given {label} of type {type(given).__name__}; wanted a "
                            "Tensor (gt.asarray makes one)")


def want_number(name: str, **given: Any) -> None:
    """Raise TypeError unless what is given, and may have no effect, are real numbers."""
    for label, value in given.items():
        if not isinstance(value, (int, float)) and not (
                hasattr(value, "__float__") and np.size(value) == 1):
            raise TypeError(f"{name} was given {label}={value!r}; wanted a number")


def same_dtype(name: str, **tensors: Tensor | None) -> None:
    """Raise TypeError unless those that are there are Tensors of one floating dtype.

    Under `gt.autocast` the op makes one dtype of float32 and half types. Called before their shapes
    are read, which a list lacks.
    """
    first = None
    same = True
    try:
        for t in tensors.values():  # a generator would cost as much as a small op
            if t is None:
                continue
            dtype = t._array.dtype
            if first is None:
                first = dtype
                same = dtype.kind in "fV"
            elif dtype != first:
                same = False
    except AttributeError:  # asking each would cost what trying does not
        want_tensors(name, **tensors)
        raise
    if not same and (casts := current_casts()) is not None:
        same = casts.unites([t.dtype for t in tensors.values() if t is not None])
    if not same:
        listed = ", ".join(
            f"{label} of dtype {t.dtype}" for label, t in tensors.items() if t is not None)
        raise TypeError(f"{name} was given {listed}; wanted one floating-point dtype")


def of_half(input: Any) -> bool:
    """Whether the input is of a half type; a Python number is not."""
    dtype = getattr(input, "dtype", None)
    return dtype is not None and dtype.itemsize == 2 and dtype.kind in "fV"


def sums_in(dtype: np.dtype, other: np.dtype) -> bool:
    """Whether a sum of both has that dtype, which kernels of the other can write: of its own, or
    float32 where that is a half type."""
    return dtype == other or dtype == _FLOAT32 and other.itemsize == 2 and other.kind in "fV"


def autocast(policy: str, *inputs: Any) -> tuple[Any, ...]:
    """Inputs of a function of several ops, cast as an op of that policy casts its own."""
    casts = current_casts()
    return inputs if casts is None else casts.cast(policy, inputs)


def check_reduction(name: str, reduction: str) -> None:
    """Raise ValueError for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name} was given reduction={reduction!r}; wanted one of "
                         f"{', '.join(map(repr, REDUCTIONS))}")
