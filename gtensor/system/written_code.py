"""Functions written as text: call paths and rules, whose cost is Python's own, and entrances.

Equal texts share one code object, and tracebacks show their lines.

An entrance is where a call of a public function enters: text with the function's own signature,
written at the first call. An error from the inside ends in its `except`, which costs nothing until
then, and becomes one sentence if an argument is not of its parameter's kind. The kinds are those of
`gtensor.kinds`, which reads the annotations; it is loaded when first needed.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import is_dataclass
from functools import WRAPPER_ASSIGNMENTS, cache, partial
from importlib import import_module
from types import CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_table: list[str] = []  # the module with `refuse`, which only higher floors can be


def written(text: str, scope: dict[str, Any], function: str, name: str) -> Callable[..., Any]:
    """The `function` that the text defines over the names of `scope`, called `name`."""
    names = dict(scope)
    exec(_compiled(text), names)
    made: Callable[..., Any] = names[function]
    made.__name__ = made.__qualname__ = name
    return made


def _first(*args: Any, **params: Any) -> Any:
    return WRITE()(*args, **params)  # type: ignore[name-defined]  # noqa: F821


def written_when_called(
    function: FunctionType, write: Callable[[], tuple[str, dict[str, Any]]]
) -> FunctionType:
    """A function in the place of another, which it wraps; its first call writes its text.

    Texts are compiled at import no more than ops' calls are: each takes some 70 us.

    Args:
        function: what the text calls, as `function`.
        write: the text, of a function of the same name, and its scope.
    """
    scope: dict[str, Any] = {"__name__": __name__}
    call = FunctionType(_first.__code__, scope, function.__name__)
    for name in WRAPPER_ASSIGNMENTS:
        setattr(call, name, getattr(function, name))
    call.__wrapped__ = function  # type: ignore[attr-defined]

    def write_once() -> FunctionType:
        text, names = write()
        made = written(text, names, function.__name__, function.__name__)
        scope.update(made.__globals__)
        # In this order, so that another thread's call finds what it needs: `_first` has no defaults
        call.__defaults__, call.__kwdefaults__ = made.__defaults__, made.__kwdefaults__
        call.__code__ = made.__code__
        return call

    scope["WRITE"] = write_once
    return call


def is_written(function: FunctionType) -> bool:
    """Whether it stands in the place of another."""
    return "WRITE" in function.__globals__


@cache
def _compiled(text: str) -> CodeType:
    name = f"{__file__} (text {_compiled.cache_info().currsize})"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return compile(text, name, "exec")


# -- entrances -------------------------------------------------------------------------------------


def kinds_in(module: str) -> None:
    """Say which module knows the kinds of parameters."""
    _table[:] = [module]


def refuse(
    function: Callable[..., Any], given: dict[str, Any], error: Exception | None = None
) -> None:
    """Raise TypeError or ValueError, caused by the error, if an argument is not of its kind.

    An error that is a sentence already is left as it is. If its sentence is of the shapes that an
    op within the function was given, it gets the function's name and arguments.
    """
    if error is not None:
        if (sentence := getattr(error, "of_shapes", None)) is not None:
            error.args = (_with_shapes(function.__name__, given, sentence),)
        if _is_sentence(error):
            return
    for module in _table:
        import_module(module).refuse(function, given, error)


def refuse_call(
    function: Callable[..., Any], args: tuple[Any, ...], params: Mapping[str, Any], error: Exception
) -> None:
    """The same of a method of gtensor's own; users' annotations may mean other things."""
    if isinstance(function, MethodType) and function.__module__.startswith("gtensor."):
        method = function.__func__
        try:
            given = inspect.signature(method).bind(function.__self__, *args, **params).arguments
        except TypeError:  # Python's own sentence
            return
        refuse(method, given, error)


def _with_shapes(name: str, given: dict[str, Any], sentence: str) -> str:
    shapes = [f"{label} of shape {value.shape}" for label, value in given.items()
              if isinstance(getattr(value, "shape", None), tuple)]
    if not shapes or sentence.startswith(f"{name} of"):
        return sentence
    return f"{name} was given {', '.join(shapes)}: {sentence}"


def _is_sentence(error: Exception) -> bool:
    if type(error).__module__.startswith("gtensor."):
        return True
    try:
        return "wanted" in str(error)
    except Exception:
        return False


def entrance(function: F) -> F:
    """The function, whose errors name the argument that is not of its kind."""
    return written_when_called(function, partial(entrance_text, function))  # type: ignore


def checked(function: F) -> F:
    """`entrance` that checks arguments before it calls: for what is not called often.

    So a wrong one that would be kept, and be found only when it is used, is refused at once.
    """
    return written_when_called(function, partial(_checking_text, function))  # type: ignore


def enter(
    room: dict[str, Any], check: bool = False, leave: Container[str] = (), classes: bool = True
) -> None:
    """Put the entrance of each public function of a room in its place, and of its constructors.

    Args:
        check: see `checked`.
        leave: names of what is called too often, or reads its caller.
        classes: whether the room's classes are its own.
    """
    for name in room["__all__"]:
        found = None if name in leave else room.get(name)
        if isinstance(found, FunctionType) and not is_written(found):
            room[name] = entered = checked(found) if check else entrance(found)
            entered.__module__ = room["__name__"]  # where pickles find it
        elif classes and inspect.isclass(found) and not is_dataclass(found):
            enter_class(found, check)


def enter_class(made: type, check: bool) -> None:
    """The same of what a class's own `__init__` is given."""
    own = vars(made).get("__init__")
    if isinstance(own, FunctionType) and not is_written(own):
        setattr(made, "__init__", checked(own) if check else entrance(own))  # noqa: B010  mypy


def entrance_text(
    function: Callable[..., Any], first: str = "", scope: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, dict[str, Any]]:
    """The text of a call, and its scope; `first` is what it begins with, in upper-case names."""
    takes, passes, names, defaults = signature_text(function)
    return (f"def {function.__name__}({takes}):\n"
            "    try:\n"
            f"{first}"
            f"        return FUNCTION({passes})\n"
            "    except Exception as ERROR:\n"
            f"        REFUSE(FUNCTION, {names}, ERROR)\n"
            "        raise\n"), {"FUNCTION": function, "REFUSE": refuse, **defaults, **scope}


def _checking_text(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    takes, passes, names, defaults = signature_text(function)
    return (f"def {function.__name__}({takes}):\n"
            f"    REFUSE(FUNCTION, {names})\n"
            f"    return FUNCTION({passes})\n"), {
                "FUNCTION": function, "REFUSE": refuse, **defaults}


def signature_text(function: Callable[..., Any]) -> tuple[str, str, str, dict[str, Any]]:
    """What it takes, how that is passed on, a dict of it by name, and the defaults by name."""
    parameters = list(inspect.signature(function).parameters.values())
    defaults = {f"default_{p.name}": p.default for p in parameters if p.default is not p.empty}
    given = ", ".join(f"{p.name!r}: {p.name}" for p in parameters)
    return (", ".join(_taken(parameters)), ", ".join(_passed(parameters)), f"{{{given}}}", defaults)


def _taken(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The parameters, defaults by name, between the marks of their kinds."""
    kinds = inspect.Parameter
    before: Any = None
    for p in parameters:
        if before is kinds.POSITIONAL_ONLY is not p.kind:
            yield "/"
        if p.kind is kinds.KEYWORD_ONLY is not before is not kinds.VAR_POSITIONAL:
            yield "*"
        before = p.kind
        yield f"{_star(p)}{p.name}" + f"=default_{p.name}" * (p.default is not p.empty)
    if before is kinds.POSITIONAL_ONLY:
        yield "/"


def _passed(parameters: list[inspect.Parameter]) -> Iterator[str]:
    for p in parameters:
        yield f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else _star(p) + p.name


def _star(p: inspect.Parameter) -> str:
    return "*" * (p.kind is p.VAR_POSITIONAL) + "**" * (p.kind is p.VAR_KEYWORD)
