"""The kinds of parameters: what each takes, in one table.

A parameter's kind follows from its annotation and, for a few, from its name. Checks, the sentences
of errors and the wrong calls that tests generate all read this table. It is loaded when a call has
raised an error, or before calls that are never repeated often, such as constructors.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from inspect import Parameter
from itertools import chain
from numbers import Integral, Real
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from gtensor.backend import Device, element_type
from gtensor.engine.handle.tensor import Tensor

_DEEPEST = 64  # as many axes as NumPy has


class Kind(NamedTuple):
    """What a parameter takes.

    Attributes:
        wanted: in words, as the end of "wanted ...".
        test: whether a value is of the kind. A call with one that is not must raise; one that is
            may still be refused, such as an axis that the tensor lacks.
        sure: types of which every value is.
        of: the types of values that are refused with ValueError, not TypeError.
        usual: types of which values are, if a call with another one, though it fits, has failed.
    """

    wanted: str
    test: Callable[[Any], bool]
    sure: tuple[type, ...] = ()
    of: tuple[type, ...] = ()
    usual: tuple[type, ...] = ()

    def fits(self, value: Any) -> bool:
        """What `test` says; True for a value that cannot be asked, such as a consumed tensor."""
        if type(value) in self.sure:
            return True
        try:
            return self.test(value)
        except Exception:
            return True

    def is_usual(self, value: Any) -> bool:
        return not self.usual or isinstance(value, self.usual)


# -- what values are -------------------------------------------------------------------------------


def _is_integer(value: Any) -> bool:
    """Whether it counts: an integer of Python's or NumPy's, or a tensor of one."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim == 0 and value.dtype.kind in "iub"
    return isinstance(value, Integral)


def _is_number(value: Any) -> bool:
    """A real number, or a tensor of one."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.size == 1 and _is_numeric(value.dtype) and value.dtype.kind != "c"
    return isinstance(value, Real)


def _is_complex(value: Any) -> bool:
    return isinstance(value, complex) or _is_number(value) or (
        isinstance(value, (Tensor, np.ndarray, np.generic)) and value.size == 1
        and value.dtype.kind == "c")


def _is_numeric(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or dtype.kind == "V" and dtype.num >= 256  # of ml_dtypes


def _is_array(value: Any) -> bool:
    """What `gt.asarray` takes."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _is_numeric(value.dtype)
    if isinstance(value, (bool, int, float, complex, Tensor, range)):
        return True
    if isinstance(value, (list, tuple)):
        return _sizes(value) is not None
    return not isinstance(value, type) and any(hasattr(value, name) for name in (
        "__dlpack__", "__array__", "__array_interface__", "__cuda_array_interface__"))


def _sizes(value: Any, depth: int = 0) -> tuple[int, ...] | None:
    """The shape of nested numbers, None if they have none."""
    if not isinstance(value, (list, tuple)):
        return tuple(getattr(value, "shape", ())) if _is_array(value) else None
    if depth > _DEEPEST:
        return None
    inner = [_sizes(v, depth + 1) for v in value]
    if any(sizes is None or sizes != inner[0] for sizes in inner):
        return None
    return (len(value), *((inner[0] or ()) if inner else ()))


def _is_dtype(value: Any) -> bool:
    try:
        element_type(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_device(value: Any) -> bool:
    """A device, or a name: of one that is not there DeviceError tells more."""
    return isinstance(value, (Device, str))


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and value != "" and "\0" not in os.fspath(value)


def _is_flag(value: Any) -> bool:
    """Anything that Python can ask whether it is true."""
    try:
        bool(value)
    except Exception:
        return False
    return True


def _is_parameters(value: Any) -> bool:
    """Tensors, or groups: of those, iterators are not read."""
    if isinstance(value, (Tensor, np.ndarray, str, bytes, Mapping)):
        return False
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(isinstance(v, (Tensor, Mapping, tuple)) for v in value)
    return isinstance(value, Iterable) and not isinstance(value, type)


def _all(fits: Callable[[Any], bool], *kinds: type) -> Callable[[Any], bool]:
    """Whether it is one of some containers, and its items fit."""
    def of_items(value: Any) -> bool:
        items: Any = value  # mypy takes it for an object below
        if isinstance(value, (Tensor, np.ndarray)) and list in kinds:
            return value.ndim > 0 and all(map(fits, items))
        return isinstance(value, kinds) and not isinstance(value, (str, bytes)) and all(
            map(fits, items))

    return of_items


def _is_a(module: str, name: str) -> Callable[[Any], bool]:
    """Whether it is of a class; of none while the module of the class is not loaded."""
    return lambda value: module in sys.modules and isinstance(
        value, getattr(sys.modules[module], name))


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _between(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and bool(least <= value <= most)


# -- the table -------------------------------------------------------------------------------------

_NUMBERS = (int, float, bool)
ARRAY = Kind("a tensor, an array, a number or nested lists of numbers", _is_array,
             (Tensor, *_NUMBERS, complex))
INTEGER = Kind("an integer", _is_integer, (int, bool))
NUMBER = Kind("a number", _is_number, _NUMBERS)
INTEGERS = Kind("a sequence of integers", _all(_is_integer, list, tuple, range))
TEXT = Kind("a string", _of(str), (str,))
CALLABLE = Kind("a function", callable, (FunctionType,))
ITERABLE = Kind("something to iterate over", _of(Iterable))
SEQUENCE = Kind("a sequence", _of(Sequence, np.ndarray, Tensor), (list, tuple))
TENSORS = Kind("a sequence of tensors", _all(_is_array, list, tuple))
ITERABLE_OF_TENSORS = Kind("tensors", lambda value: (
    isinstance(value, Tensor) or _is_parameters(value)))
TRANSFORM = Kind("a Transform of gt.distributions",
                 _is_a("gtensor.distributions.transforms", "Transform"))
MODULE = Kind("a Module", _is_a("gtensor.nn.module", "Module"))
PATH = Kind("a path", _is_path)
DTYPE = Kind("a dtype, such as gt.float32", _is_dtype)
MAPPING = Kind("a mapping", _of(Mapping), (dict,))
PROBABILITY = Kind("a probability from 0 to 1", _between(0, 1), of=_NUMBERS)
FLAG = Kind("True or False", _is_flag, (bool, int), usual=(int, np.bool_))
NONE = Kind("None", lambda value: value is None, (type(None),), usual=(type(None),))
ANYTHING = Kind("anything", lambda value: True)
_WRITTEN = Kind("a Tensor", lambda value: isinstance(value, Tensor))


def _several(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether items can be read of it, which fit where reading does not use them up."""
    return lambda value: isinstance(value, Iterable) and not isinstance(value, type) and (
        not isinstance(value, (list, tuple)) or all(map(fits, value)))


_OF_TYPE = {  # an alternative of an annotation -> its kind
    "Tensor": ARRAY, "Operand": ARRAY, "Array": ARRAY,
    "np.ndarray": Kind("an array", lambda value: (
        isinstance(value, np.ndarray) and _is_numeric(value.dtype))),
    "int": INTEGER, "float": NUMBER, "bool": FLAG,
    "complex": Kind("a number", _is_complex, (*_NUMBERS, complex)), "str": TEXT,
    "None": NONE,
    "Sequence[int]": INTEGERS, "list[int]": INTEGERS,
    "tuple[int, ...]": INTEGERS, "tuple[int]": INTEGERS, "tuple[int, int]": INTEGERS,
    "Iterable[int]": Kind("integers", lambda value: (
        INTEGERS.fits(value) if isinstance(value, (list, tuple, str, bytes))
        else isinstance(value, Iterable))),
    "Iterable[Any]": ITERABLE,
    "Sequence[Tree]": SEQUENCE, "Sequence[Any]": SEQUENCE,
    "Sequence[Callable[[int], float]]": Kind(
        "a sequence of functions", _all(callable, list, tuple)),
    "Sequence[LRScheduler]": Kind("a sequence of schedules", _all(
        _is_a("gtensor.optim.lr_scheduler", "LRScheduler"), list, tuple)),
    "Dataset": Kind("an object with __len__ and __getitem__", lambda value: (
        hasattr(value, "__getitem__") and hasattr(value, "__len__"))),
    "Resource": Kind("a resource, such as gt.memory.Arena", lambda value: (
        hasattr(value, "allocate"))),
    "SegmentSource": Kind("a source of segments, such as gt.memory.HostSegments()", lambda value: (
        hasattr(value, "granularity"))),
    "Sequence[float]": Kind("a sequence of numbers", _all(_is_number, list, tuple, range)),
    "tuple[float, float]": Kind("two numbers", lambda value: (
        isinstance(value, Iterable) and len(list(value)) == 2 and all(map(_is_number, value)))),
    "Callable": CALLABLE, "Function": CALLABLE, "Gather": CALLABLE, "StreamOf": CALLABLE,
    "Path": CALLABLE,
    "DTypeLike": DTYPE,
    "Device": Kind("a device, such as 'cpu' or 'cuda:0'", _is_device),
    "Sequence[Tensor]": TENSORS,
    "Iterable[Tensor]": ITERABLE_OF_TENSORS, "Iterable[Tensor] | Tensor": ITERABLE_OF_TENSORS,
    "tuple[Sequence[int], Sequence[int]]": Kind("a pair of axes, or of sequences of them", (
        lambda value: isinstance(value, Sequence) and len(value) == 2 and all(
            _is_integer(v) or INTEGERS.fits(v) for v in value))),
    "Parameters": Kind("tensors, or groups of them", _is_parameters),
    "Module": MODULE, "M": MODULE,
    "Iterable[Module]": Kind("Modules", _several(MODULE.fits)),
    "tuple[int | None, int | None]": Kind("two integers", lambda value: (
        isinstance(value, Sequence) and all(v is None or _is_integer(v) for v in value))),
    "tuple[float, ...]": Kind("a sequence of numbers", _all(_is_number, list, tuple, range)),
    "LanguageModel": Kind("a language model", lambda value: hasattr(value, "initial_state")),
    **{f"{name}Config": Kind(f"a {name}Config", _is_a(f"gtensor.models.{name.lower()}",
                                                     f"{name}Config"))
       for name in ("Denoiser", "GPT", "ResNet", "SSM")},
    "Optimizer": Kind("an Optimizer", _is_a("gtensor.optim.optimizer", "Optimizer")),
    "Generator": Kind("a gt.Generator", _is_a("gtensor.creation.generators", "Generator")),
    "Key": Kind("a key of gt.random.key", _is_a("gtensor.creation.generators", "Key")),
    "Distribution": Kind("a distribution of gt.distributions",
                         _is_a("gtensor.distributions.distribution", "Distribution")),
    "Transform": TRANSFORM,
    "Sequence[Transform]": Kind("a list of Transforms", _all(TRANSFORM.fits, list, tuple)),
    "Stream": Kind("a stream of gt.stream", lambda value: hasattr(value, "__enter__")),
    "Communicator": Kind("a communicator, such as that of gt.distributed.init()",
                         lambda value: hasattr(value, "all_gather_object")),
    "Stateful": Kind("an object with state_dict()", lambda value: hasattr(value, "state_dict")),
    "PathLike": PATH, "PathLike[str]": PATH, "os.PathLike[str]": PATH,
    "Mapping": MAPPING, "dict": MAPPING,
}
_ALIASES = {  # names of annotations -> what they stand for
    "Axis": "int | Sequence[int] | None", "Axes": "int | Sequence[int]",
    "Shape": "int | Sequence[int]", "DeviceLike": "Device | str | None",
    "Sizes": "int | Sequence[int]", "Size": "int | Sequence[int]", "Single": "int | tuple[int]",
    "Pair": "tuple[int, int]", "PerAxis": "int | Sequence[int]",
    "Argnums": "int | Sequence[int]", "ChunkSize": "int | Literal['auto'] | None",
    "Randomness": "Literal['error', 'different', 'same']",
    "AdaptiveSize": "int | Sequence[int]", "Rename": "Callable | Mapping | None",
}
_PROBABILITIES = ("p", "dropout")  # names that say more than the annotation float


def kind_of(parameter: Parameter) -> Kind:
    """The kind of a parameter of a signature."""
    annotation = parameter.annotation
    if annotation is Parameter.empty:
        return ANYTHING
    text = annotation if isinstance(annotation, str) else getattr(
        annotation, "__forward_arg__", getattr(annotation, "__name__", str(annotation)))
    if parameter.name in _PROBABILITIES and text == "float" and parameter.default in (0.0, 0.5):
        return PROBABILITY
    return _kind_of(text)


@cache
def _kind_of(text: str) -> Kind:
    """The kind of an annotation: that of its alternatives together."""
    if text in _OF_TYPE and text != "None":  # what is not supported has a sentence of its own
        return _OF_TYPE[text]
    parts = _alternatives(text)
    kinds = [_one_kind(part) for part in parts
             if not (part == "str" and ("Device" in parts or "PathLike[str]" in parts))
             and not (part == "Tensor" and "Iterable[Tensor]" in parts)]
    if len(kinds) == 1 or ANYTHING in kinds:
        return ANYTHING if ANYTHING in kinds or kinds == [NONE] else kinds[0]
    words = list(dict.fromkeys(kind.wanted for kind in kinds))
    wanted = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return Kind(wanted, lambda value: any(kind.fits(value) for kind in kinds),
                tuple(chain.from_iterable(kind.sure for kind in kinds)),
                tuple(chain.from_iterable(kind.of for kind in kinds)),
                tuple(chain.from_iterable(kind.usual for kind in kinds))
                if all(kind.usual for kind in kinds) else ())


def _alternatives(text: str) -> list[str]:
    """The parts of a union, aliases replaced."""
    parts = [""]
    for word in text.strip("'\"").split(" | "):
        if parts[-1].count("[") > parts[-1].count("]"):  # the union is within it
            parts[-1] += f" | {word}"
        else:
            parts.append(word)
    return [one for part in parts[1:]
            for one in (_alternatives(_ALIASES[part]) if part in _ALIASES else [part])]


def _one_kind(text: str) -> Kind:
    if text.startswith("Literal["):
        choices = [choice.strip("'\" ") for choice in text[8:-1].split(",")]
        return Kind("one of " + ", ".join(map(repr, choices)), lambda value: (
            isinstance(value, str) and value in choices), of=(str,))
    return _OF_TYPE.get(text) or _OF_TYPE.get(text.partition("[")[0], ANYTHING)


# -- sentences -------------------------------------------------------------------------------------


def refuse(
    function: Callable[..., Any], given: Mapping[str, Any], error: Exception | None = None
) -> None:
    """Raise TypeError or ValueError, caused by the error, if an argument is not of its kind."""
    for fits in (Kind.fits,) if error is None else (Kind.fits, Kind.is_usual):
        for name, kind, value in _arguments(function, given):
            if not fits(kind, value):
                made = ValueError if type(value) in kind.of else TypeError
                raise made(f"{_name_of(function, given)} was given {name}={shown(value)}; "
                           f"wanted {kind.wanted}") from error


def _arguments(
    function: Callable[..., Any], given: Mapping[str, Any]
) -> Iterator[tuple[str, Kind, Any]]:
    for name, kind, several in _kinds_of(function):
        if name in given:
            for value in given[name] if several else (given[name],):
                yield name, kind, value


def shown(value: Any) -> str:
    """A value in an error's sentence: itself if it is short, else its type or its shape."""
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} of shape {value.shape} and dtype {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # whatever a class of the user's raises there
        return f"{type(value).__name__}"
    return text if len(text) <= 80 and "\n" not in text else f"{type(value).__name__}"


@lru_cache(maxsize=1024)
def _kinds_of(function: Callable[..., Any]) -> tuple[tuple[str, Kind, bool], ...]:
    """(name, kind, whether it holds several) of the parameters that have a kind."""
    found = []
    for p in inspect.signature(function).parameters.values():
        kind = _WRITTEN if _is_written(function, p) else kind_of(p)
        if kind is not ANYTHING and p.kind is not p.VAR_KEYWORD:
            found.append((p.name, kind, p.kind is p.VAR_POSITIONAL))
    return tuple(found)


def _is_written(function: Callable[..., Any], parameter: Parameter) -> bool:
    """Whether it must be a Tensor: that of a method, and what a function in place writes."""
    if parameter.name == "self":
        return function.__module__.startswith(("gtensor.engine.handle.", "gtensor.composed."))
    return parameter.name in ("tensor", "input") and function.__name__.endswith("_")


def _name_of(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """As users call it: an object that is made, or a module, has its class's name."""
    name = function.__name__
    return type(given["self"]).__name__ if name in ("__init__", "forward") else name
