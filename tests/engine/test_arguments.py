"""What a path takes, read from its code, is what `inspect.signature` says."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from gtensor.engine.tape.arguments import _inspected, arguments_of


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def plain(a: Any, b: Any, *, out: Any = None, p: int = 1) -> None: ...
def positional(a: Any, b: Any, /, c: int = 3, *, d: int = 4) -> None: ...
def rest(a: Any, *args: Any, p: int = 1, **more: Any) -> None: ...


class Paths:
    @wrapped
    def decorated(self, x: Any, *, p: int = 1) -> None: ...
    def method(self, x: Any, *, p: int = 1) -> None: ...
    def __call__(self, x: Any, *, q: int = 2) -> None: ...


def stated(function: Any) -> Any:
    """A decorator that adds an argument, and says so."""
    made = wrapped(function)
    parameters = [*inspect.signature(function).parameters.values()]
    made.__signature__ = inspect.Signature(
        [*parameters, inspect.Parameter("extra", inspect.Parameter.KEYWORD_ONLY, default=5)])
    return made


@pytest.mark.parametrize("path", [
    plain, positional, rest, wrapped(plain), stated(plain), Paths().decorated, Paths().method,
    Paths(), functools.partial(plain, p=3), functools.lru_cache(plain)],
    ids=["plain", "positional", "rest", "wrapped", "stated", "decorated method", "method",
         "object", "partial", "cached"])
def test_the_arguments_of_a_path_are_those_of_its_signature(path: Any) -> None:
    assert arguments_of(path) == _inspected(path)
