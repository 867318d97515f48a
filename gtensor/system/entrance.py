"""Where calls enter: an argument of the wrong kind gets one sentence, which names it.

The call of a public function is text with the function's own signature, written at the first call.
An error from the inside ends in its `except`, which costs nothing until then. What each parameter
takes is known to `gtensor.kinds`, which reads the annotations; it is loaded when first needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from importlib import import_module
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

from gtensor.system.written_code import is_written, written_when_called

F = TypeVar("F", bound=Callable[..., Any])
_table: list[str] = []  # the module with `refuse`, which only higher floors can be


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

    So a call that would accept a wrong one, or fail halfway, changes nothing.
    """
    return written_when_called(function, partial(_checking_text, function))  # type: ignore


def enter(room: dict[str, Any], check: bool = True, leave: Container[str] = ()) -> None:
    """Put the entrance of each public function of a room in its place, and of its constructors.

    `leave`: names of what is called too often.
    """
    made = checked if check else entrance
    for name in room["__all__"]:
        found = None if name in leave else room.get(name)
        if isinstance(found, FunctionType) and not is_written(found):
            room[name] = made(found)
        elif inspect.isclass(found):
            enter_class(found)


def enter_class(made: type) -> None:
    """Check what a class's own `__init__` is given."""
    own = vars(made).get("__init__")
    if isinstance(own, FunctionType):
        setattr(made, "__init__", checked(own))  # noqa: B010  mypy


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
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(p.kind, "")
        yield f"{star}{p.name}" + f"=default_{p.name}" * (p.default is not p.empty)
    if before is kinds.POSITIONAL_ONLY:
        yield "/"


def _passed(parameters: list[inspect.Parameter]) -> Iterator[str]:
    for p in parameters:
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        yield f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else star + p.name
