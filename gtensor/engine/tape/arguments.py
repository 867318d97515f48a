"""What a path or a formula takes, read from its code.

`inspect.signature` costs about 15 us, and importing gtensor defines 300 ops. So only names are read
when an op is defined, and its signature is made when `help` or a test first asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, NamedTuple


class Arguments(NamedTuple):
    """The names of a function's arguments."""

    inputs: tuple[str, ...]  # by position
    params: tuple[str, ...]  # by keyword only
    defaults: dict[str, Any]
    rest: bool  # whether it takes any other keywords


def arguments_of(path: Callable[..., Any]) -> Arguments:
    """What a path takes. One made of a `formula(ns, ...)`, its attribute, takes what that does."""
    formula = getattr(path, "formula", None)
    if formula is not None:
        found = arguments_of(formula)
        return found._replace(inputs=found.inputs[1:])
    if type(path) is not FunctionType or hasattr(path, "__signature__"):
        return _inspected(path)
    if hasattr(path, "__wrapped__"):
        return arguments_of(path.__wrapped__)
    code = path.__code__
    count = code.co_argcount
    inputs = code.co_varnames[:count]
    given = path.__defaults__
    defaults = dict(zip(inputs[-len(given):], given, strict=True)) if given else {}
    return Arguments(
        inputs[code.co_posonlyargcount:], code.co_varnames[count:count + code.co_kwonlyargcount],
        defaults | (path.__kwdefaults__ or {}), bool(code.co_flags & inspect.CO_VARKEYWORDS))


def _inspected(path: Callable[..., Any]) -> Arguments:
    """The same of a callable that is no plain function."""
    known = inspect.signature(path).parameters.values()
    return Arguments(
        tuple(p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD),
        tuple(p.name for p in known if p.kind is p.KEYWORD_ONLY),
        {p.name: p.default for p in known if p.default is not p.empty},
        any(p.kind is p.VAR_KEYWORD for p in known))


def parameters_of(path: Callable[..., Any]) -> list[inspect.Parameter]:
    """The same with defaults and annotations, for a signature."""
    formula = getattr(path, "formula", None)
    if formula is not None:
        return parameters_of(formula)[1:]
    return list(inspect.signature(path).parameters.values())


def check_takes(
    op_name: str, label: str, rule: object, positional: Sequence[str],
    keywords: Iterable[str] = (), rest: bool = False,
) -> None:
    """Raise TypeError unless a rule of an op can be called with these arguments.

    `rest`: it may be given further keywords. A rule whose arguments nothing tells, such as a
    kernel, is taken as it is.
    """
    if not callable(rule):
        raise TypeError(f"op {op_name!r} was given {type(rule).__name__} as its {label}; wanted a "
                        "function, or None on purpose")
    try:
        signature = inspect.signature(rule)
    except (TypeError, ValueError):
        return
    named = dict.fromkeys(keywords)
    try:
        (signature.bind_partial if rest else signature.bind)(*positional, **named)
    except TypeError as error:
        call = ", ".join([*positional, *(f"{name}=..." for name in named)])
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        takes = signature.replace(parameters=plain, return_annotation=signature.empty)
        raise TypeError(f"op {op_name!r} has a {label} that takes {takes}; it is called with "
                        f"({call}): {error}") from None


class LazySignature:
    """The `__signature__` of an instance, made by its method `_signature` when first read."""

    def __get__(self, made: Any, owner: type) -> inspect.Signature:
        if made is None:  # `inspect.signature` of the class reads `__init__`
            raise AttributeError("__signature__")
        made.__signature__ = made._signature()
        return made.__signature__
