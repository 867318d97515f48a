"""The reference has every public name once; docstrings name the parameters and errors."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import reference

import gtensor as gt


def listed(text: str) -> list[str]:
    """The names that a page has entries for."""
    return re.findall(r"^::: (gtensor[\w.]+)$|\{#(gtensor[\w.]+)\}", text, re.M)


def test_every_public_name_has_one_entry_and_each_other_name_a_link_to_it() -> None:
    texts = "\n".join(text for _, text in reference.pages())
    entries = [first or second for first, second in listed(texts)]
    entries.remove("gtensor.settings.Settings")  # the class of gt.settings, under its entry
    linked = set(re.findall(r"^- \[`gt([\w.]+)`\]", texts, re.M))
    values = reference.public()
    assert len(entries) == len(set(entries)) > 400
    assert {*entries, *(f"gtensor{name}" for name in linked)} == set(values)
    assert len({id(values[name]) for name in entries if callable(values[name])}) == len(
        {id(value) for value in values.values() if callable(value)})


def test_a_public_namespace_without_a_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a namespace that nobody has given a page."""
    hidden = ModuleType("gtensor.fft.hidden")
    hidden.__all__, hidden.f = ["f"], gt.exp
    monkeypatch.setattr(gt.fft, "hidden", hidden, raising=False)
    monkeypatch.setattr(gt.fft, "__all__", [*gt.fft.__all__, "hidden"])
    reference.namespaces.cache_clear()
    try:
        with pytest.raises(LookupError, match=r"no page in PAGES .* gtensor\.fft\.hidden"):
            list(reference.pages())
    finally:
        reference.namespaces.cache_clear()


def test_the_example_of_a_namespace_stays_a_block_of_code() -> None:
    page = next(page for page in reference.PAGES if page.title == "gt.data")
    assert "\n\n    data = gt.data.ArrayDataset(images, labels)\n" in reference.markdown(page)


def test_functions_come_before_classes_each_in_alphabetical_order() -> None:
    places = {"gt.profiler": ["profiler.range", "profiler.ranged", "profiler.Printer"],
              "gt.memory": ["memory.timeline", "memory.use", "memory.use_arena", "memory.Arena"],
              "gt.nn": ["nn.ABN", "nn.AdaptiveAvgPool1d", "nn.AdaptiveAvgPool2d"],
              "gt": ["no_grad", "set_grad_enabled", "AnomalyError"]}
    for page in reference.PAGES:
        entries = " ".join(first or second for first, second in listed(reference.markdown(page)))
        wanted = " ".join(f"gtensor.{name}" for name in places.pop(page.title, []))
        assert wanted in entries
    assert not places


# -- docstrings ------------------------------------------------------------------------------------


def documented() -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Public functions, classes and their public methods; and whether errors must be named."""
    values = reference.public()
    for name in {home: None for page in reference.entries().values() for home in page.values()}:
        value = values[name]
        if not callable(value):
            continue
        yield name, value, not getattr(value, "_is_protocol", False)
        if inspect.isclass(value):
            for key, member in vars(value).items():
                member = member.fget if isinstance(member, property) else getattr(
                    member, "__func__", member)
                if callable(member) and not key.startswith("_") and not inspect.isclass(member):
                    yield f"{name}.{key}", member, value is gt.Tensor


def faults(name: str, value: Callable[..., Any], with_errors: bool = True) -> Iterator[str]:
    """What a docstring lacks, or names and is not there."""
    text = inspect.getdoc(value)
    if not text:
        yield f"{name} has no docstring"
        return
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):  # a class of C's
        return
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", text, re.M)
    for names in re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): ", section[1] if section else "",
                            re.M):
        for one in names.replace("*", "").split(", "):
            if one not in parameters and not any(
                    p.kind is p.VAR_KEYWORD for p in parameters.values()):
                yield f"{name} has no parameter {one!r}, which its docstring describes"
    if with_errors:
        yield from (f"the docstring of {name} lacks {error}, which it raises"
                    for error in sorted(raised(value)) if error not in text)


def raised(value: Any) -> set[str]:
    """The names of the errors that a function, or a class's `__init__`, raises itself."""
    function = vars(value).get("__init__") if inspect.isclass(value) else value
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (TypeError, OSError):  # an op, or generated
        return set()
    found = (node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise))
    called = (error.func if isinstance(error, ast.Call) else error for error in found)
    return {error.id for error in called if isinstance(error, ast.Name) and error.id[0].isupper()}


def test_docstrings_name_the_parameters_and_errors_that_there_are() -> None:
    assert not [fault for name, value, errors in documented()
                for fault in faults(name, value, errors)]


def test_what_a_docstring_lacks_is_found() -> None:
    def without(x: int) -> None:
        pass

    def good(x: int, *rest: int, key: int = 0) -> None:
        """A function.

        Args:
            x, *rest: numbers.
            key: another one, with
                more: than a line.

        Raises ValueError for a negative x.
        """
        if x < 0:
            raise ValueError(x)

    def bad(x: int) -> None:
        """A function.

        Args:
            x, y: numbers.
        """
        raise ValueError(x)

    class Made:
        """A class."""

        def __init__(self) -> None:
            raise TypeError

    assert list(faults("f", without)) == ["f has no docstring"]
    assert list(faults("f", good)) == []
    assert list(faults("f", bad)) == ["f has no parameter 'y', which its docstring describes",
                                      "the docstring of f lacks ValueError, which it raises"]
    assert list(faults("f", bad, with_errors=False)) == list(faults("f", bad))[:1]
    assert list(faults("C", Made)) == ["the docstring of C lacks TypeError, which it raises"]
