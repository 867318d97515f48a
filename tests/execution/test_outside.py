"""What a function reads from outside: what is noticed, what is not, and how it is said."""

from __future__ import annotations

import enum
import functools
import gc
import math
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gtensor as gt
from gtensor import nn
from gtensor.execution.steps.outside import Outside

SCALE = 2.0
LOSS = 1.0  # of the same name as an attribute below, but no code here reads it


class Mode(enum.Enum):
    """A choice."""

    FAST = 1
    SLOW = 2


def helper(x: float) -> float:
    """Reads a global."""
    return x * SCALE


def calls_helper(x: float) -> float:
    """Reads it through another function."""
    return helper(x)


def with_defaults(x: float, power: int = 2, *, shift: float = 0.0) -> float:
    """Reads its defaults."""
    return x ** power + shift


@dataclass
class Options:
    """What programs read their options from."""

    rate: float = 0.1
    names: Any = None


@dataclass(slots=True)
class Slotted:
    """The same, without a dict and without weak references."""

    rate: float = 0.1


class Trainer:
    """A user's object that is called, or whose method is."""

    kind = "plain"

    def __init__(self) -> None:
        self.rate, self.count, self.options = 0.1, 0, Options()
        self.net = Net()

    @property
    def twice(self) -> float:
        """A property reads, too."""
        return self.rate * 2

    def step(self, x: Any) -> Any:
        """Calls another method."""
        return self.inner(x) * self.twice + self.options.rate + len(self.kind)

    def inner(self, x: Any) -> Any:
        """Runs a module of the user's."""
        return self.net(x) * SCALE

    def __call__(self, x: Any) -> Any:
        return self.step(x)


class Net(nn.Module):
    """A user's module that reads more than its registered attributes."""

    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.history: list[int] = []
        self.options = Options()

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.linear(x) * SCALE + len(self.history) + self.gain + self.options.rate


def cells(**values: Any) -> tuple[Callable[[], Any], Callable[[str, Any], None]]:
    """A function that reads these names from its closure, and one that writes them there."""
    names = ", ".join(values)
    text = (f"def make({names}):\n def f():\n  return {names}\n return f")
    exec(text, made := {})
    f = made["make"](**values)
    places = dict(zip(f.__code__.co_freevars, f.__closure__, strict=True))
    return f, lambda name, value: setattr(places[name], "cell_contents", value)


def said(outside: Outside, change: Callable[[], object]) -> str:
    """The words for a change; the states differ if and only if there are some."""
    before = outside.state()
    assert outside.state() is before
    assert outside.changed(before, before) == ""
    change()
    after = outside.state()
    assert isinstance(hash(after), int)
    words = outside.changed(before, after)
    assert (before != after) == bool(words)
    return words


VALUES: dict[str, tuple[Any, Any, str]] = {
    "float": (0.5, 0.7, "was 0.5 and is 0.7"),
    "sign of zero": (0.0, -0.0, "was 0.0 and is -0.0"),
    "nan": (1.0, math.nan, "was 1.0 and is nan"),
    "type of a number": (1, 1.0, "was 1 and is 1.0"),
    "bool": (True, 1, "was True and is 1"),
    "text": ("a", "b", "was 'a' and is 'b'"),
    "None": (None, 0, "was None and is 0"),
    "from None": (0, None, "was 0 and is None"),
    "complex": (1j, -1j, "was 1j and is (-0-1j)"),
    "dtype": (np.dtype("float32"), np.dtype("float64"), "was float32 and is float64"),
    "enum": (Mode.FAST, Mode.SLOW, "was <Mode.FAST: 1> and is <Mode.SLOW: 2>"),
    "NumPy's number": (np.float32(1), np.float32(2), "was np.float32(1.0) and is np.float32(2.0)"),
    "function": (helper, calls_helper, "is another function"),
    "class": (Options, Slotted, "is another type"),
    "kind": (3, Options(), "was 3 and is an Options"),
    "list": ([1, 2], [1, 3], "`v[1]` was 2 and is 3"),
    "length": ([1, 2], [1, 2, 3], "had 2 items and has 3"),
    "dict": ({"a": {"b": 1}}, {"a": {"b": 2}}, "`v['a']['b']` was 1 and is 2"),
    "key": ({"a": 1}, {"b": 1}, "has other items"),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "has other items"),
    "set": ({1, 2}, {1, 3}, "has other items"),
    "tuple for list": ([1], (1,), "was a list and is a tuple"),
    "long": ([0] * 65, [0] * 66, "had 65 items and has 66"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_of_the_closure_is_noticed(case: str) -> None:
    old, new, words = VALUES[case]
    f, put = cells(v=old)
    found = said(Outside(f), lambda: put("v", new))
    assert found.startswith("the closure's `v") and words in found


SAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "nan": (lambda: float("nan"), lambda: -float("nan") * 0 + float("nan")),
    "numbers": (lambda: 10**20, lambda: 10**19 * 10),
    "texts": (lambda: "x" * 50, lambda: "".join(["x"] * 50)),
    "containers": (lambda: {"a": [1, {2.0}]}, lambda: {"a": [1, {2.0}]}),
    "dtypes": (lambda: np.dtype("f4"), lambda: np.dtype("float32")),
}


@pytest.mark.parametrize("case", SAME)
def test_equal_values_are_the_same(case: str) -> None:
    old, new = SAME[case]
    f, put = cells(v=old())
    assert said(Outside(f), lambda: put("v", new())) == ""


def test_objects_are_known_by_identity() -> None:
    x, net = gt.ones(3), nn.Linear(3, 3)
    optimizer = gt.optim.SGD(net.parameters(), lr=0.1)
    f, put = cells(x=x, net=net, optimizer=optimizer, both=[x, x])
    outside = Outside(f)

    def write() -> None:
        x[...] = 0
        optimizer.lr = 0.5
        net.eval()  # which the structure epoch counts

    assert said(outside, write) == ""
    assert said(outside, lambda: put("x", gt.ones(3))) == "the closure's `x` is another Tensor"
    assert said(outside, lambda: put("net", nn.Linear(3, 3))) == (
        "the closure's `net` is another Linear")
    assert said(outside, lambda: put("both", [x, gt.ones(3)])) == (
        "the closure's `both[1]` is another Tensor")


def test_nothing_is_kept_alive_and_an_object_at_a_dead_ones_place_is_another() -> None:
    class Plain:
        pass

    f, put = cells(v=Plain(), several=[Plain(), Plain()])
    outside = Outside(f)
    dead = [weakref.ref(f()[0]), *map(weakref.ref, f()[1])]
    before = outside.state()
    place = id(f()[0])
    for _ in range(50):
        put("v", None)
        put("several", None)
        put("v", Plain())
        put("several", [Plain(), Plain()])
        gc.collect()
        assert outside.state() != before
        if id(f()[0]) == place:
            break
    assert [ref() for ref in dead] == [None] * 3


def test_a_list_that_comes_back_is_the_same_again() -> None:
    x, y = gt.ones(3), gt.ones(3)
    f, put = cells(v=[x, y])
    outside = Outside(f)
    first = outside.state()
    for other in (5, (x, y), [y, x]):
        put("v", other)
        assert outside.state() != first
        put("v", [x, y])
        assert outside.state() == first


def test_globals_are_read_through_other_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (calls_helper, functools.partial(calls_helper, 1.0), lambda x: calls_helper(x),
                     functools.lru_cache(calls_helper), gt.no_grad()(calls_helper),
                     gt.grad(calls_helper)):
        with monkeypatch.context() as patch:
            assert said(Outside(function), lambda: patch.setitem(globals(), "SCALE", 3.0)) == (
                "the global `SCALE` that `helper` reads was 2.0 and is 3.0")
        with monkeypatch.context() as patch:
            assert "is another function" in said(
                Outside(function), lambda: patch.setitem(globals(), "helper", with_defaults))
    with monkeypatch.context() as patch:
        assert said(Outside(helper), lambda: patch.delitem(globals(), "SCALE")) == (
            "the global `SCALE` was 2.0 and is gone")
        assert said(Outside(helper), lambda: patch.setitem(globals(), "SCALE", 1)) == (
            "the global `SCALE` was not there and is 1")


def test_only_globals_that_are_read_count(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = Outside(lambda out: out.LOSS + len(out))
    assert said(outside, lambda: monkeypatch.setitem(globals(), "LOSS", 2.0)) == ""


def test_defaults_and_arguments_of_partials() -> None:
    changes: list[tuple[Callable[..., Any], Callable[[Any], object], str]] = [
        (with_defaults, lambda f: setattr(f, "__defaults__", (3,)),
         "the default of `power` was 2 and is 3"),
        (with_defaults, lambda f: f.__kwdefaults__.update(shift=1.0),
         "the default of `shift` was 0.0 and is 1.0"),
    ]
    for function, change, words in changes:
        copy = types.FunctionType(function.__code__, globals(), "copy", function.__defaults__)
        copy.__kwdefaults__ = dict(function.__kwdefaults__ or {})
        assert said(Outside(copy), lambda copy=copy, change=change: change(copy)) == words
    options = [1]
    assert said(Outside(functools.partial(helper, options)), lambda: options.append(2)) == (
        "the argument `0` of a partial had 1 items and has 2")


def test_attributes_that_the_code_names() -> None:
    options = Options(names=[1])
    slotted, space = Slotted(), types.SimpleNamespace(sub=options)
    f: Callable[[], Any] = lambda: (options.rate, slotted.rate, space.sub.names)  # noqa: E731
    outside = Outside(f)
    assert said(outside, lambda: setattr(options, "rate", 0.2)) == (
        "the closure's `options.rate` was 0.1 and is 0.2; "
        "the closure's `space.sub.rate` was 0.1 and is 0.2")
    assert said(outside, lambda: setattr(slotted, "rate", 0.2)) == (
        "the closure's `slotted.rate` was 0.1 and is 0.2")
    assert "`space.sub.names` had 1 items and has 2" in said(
        outside, lambda: options.names.append(2))
    assert said(outside, lambda: setattr(options, "other", 1)) == ""
    assert said(outside, lambda: delattr(space, "sub")) == (
        "the closure's `space.sub` was an Options and is gone")


METHODS: dict[str, tuple[Callable[[Trainer], object], str]] = {
    "a property's": (lambda t: setattr(t, "rate", 0.2), "`self.rate` was 0.1 and is 0.2"),
    "of a part": (lambda t: setattr(t.options, "rate", 0.2),
                  "`self.options.rate` was 0.1 and is 0.2"),
    "over the class's": (lambda t: setattr(t, "kind", "new"),
                         "`self.kind` was 'plain' and is 'new'"),
    "another module": (lambda t: setattr(t, "net", Net()),
                       "`self.net` is another Net; `Net` was an object and is gone"),
    "a list of the module": (lambda t: t.net.history.append(1),
                             "`Net.history` had 0 items and has 1"),
    "options of the module": (lambda t: setattr(t.net.options, "rate", 0.2),
                              "`Net.options.rate` was 0.1 and is 0.2"),
    "not read": (lambda t: setattr(t, "count", 1), ""),
    "counted by the epoch": (lambda t: t.net.eval(), ""),
}


@pytest.mark.parametrize("called", [lambda t: t.step, lambda t: t])
@pytest.mark.parametrize("case", METHODS)
def test_methods_and_objects_that_are_called(case: str, called: Any) -> None:
    trainer = Trainer()
    change, words = METHODS[case]
    assert said(Outside(called(trainer)), lambda: change(trainer)) == words


def test_code_that_is_replaced_is_noticed() -> None:
    """As a notebook's reload replaces methods of a class, and the code of functions."""
    class Net(nn.Module):
        def forward(self, x: float) -> float:
            return self.twice(x)

        def twice(self, x: float) -> float:
            return x * 2

    class Plain:
        size = property(lambda self: 1)

    class Below(Plain):
        @staticmethod
        def half(x: float) -> float:
            return x / 2

    def inner(x: float) -> float:
        return x + 1

    net, plain = Net(), Below()
    outside = Outside(lambda x: inner(net(x)) + plain.size + Below.half(x))

    def replace_code() -> None:
        inner.__code__ = (lambda x: x + 2).__code__

    state = outside.state()
    for replace in (lambda: setattr(Net, "forward", lambda self, x: x),
                    lambda: setattr(Net, "twice", lambda self, x: x * 3),
                    lambda: setattr(Plain, "size", property(lambda self: 2)),
                    lambda: setattr(Below, "half", staticmethod(lambda x: x)), replace_code):
        assert outside.state() is state
        replace()
        before, state = state, outside.state()
        assert outside.changed(before, state) == "the `code` of what it calls is another Version"


def test_modules_and_their_hooks_read_globals_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(3, 3), Net())
    hooked = nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, args, out: out * SCALE)
    f, _ = cells(net=net)
    for function in (net, net.forward, f, hooked):
        with monkeypatch.context() as patch:
            assert "was 2.0 and is 3.0" in said(
                Outside(function), lambda: patch.setitem(globals(), "SCALE", 3.0))
    with monkeypatch.context() as patch:
        assert said(Outside(net), lambda: patch.setattr(Net, "gain", 2.0)) == (
            "`Net.gain` was 1.0 and is 2.0")


def test_an_optimizers_numbers_count_where_the_function_reads_them() -> None:
    optimizer = gt.optim.SGD([gt.ones(3, requires_grad=True)], lr=0.1)

    def by_hand() -> Any:
        return optimizer.param_groups[0]["lr"]

    def by_name() -> float:
        return optimizer.lr

    def steps() -> None:
        optimizer.step()

    def slower() -> None:
        optimizer.lr *= 0.5

    assert said(Outside(by_hand), slower) == (
        "the closure's `optimizer.param_groups[0]['lr']` was 0.1 and is 0.05")
    assert said(Outside(by_name), slower) == "the closure's `optimizer.lr` was 0.05 and is 0.025"
    assert said(Outside(steps), slower) == ""


def test_cells_may_be_empty() -> None:
    def make() -> tuple[Callable[[], Any], Callable[[], None]]:
        def fill() -> None:
            nonlocal later
            later = 3

        def clear() -> None:
            nonlocal later
            later = None
            del later

        later = 1
        del later
        return lambda: later, fill  # noqa: F821

    f, fill = make()
    assert said(Outside(f), fill) == "the closure's `later` was not there and is 3"


def test_recursion_and_cycles_end() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1) and bool(around)

    around: list[Any] = []
    around.append(around)
    outside = Outside(even)
    assert outside.whole and outside.state() == outside.state()


def test_much_code_is_left_out_aloud() -> None:
    functions = [types.FunctionType(helper.__code__, globals()) for _ in range(600)]
    f, _ = cells(**{f"f{i}": function for i, function in enumerate(functions)})
    assert not Outside(f).whole


def test_a_message_names_some_of_many() -> None:
    f, put = cells(a=1, b=1, c=1, d=1, e=1, g=1)

    def change() -> None:
        for name in "abcdeg":
            put(name, "x" * 500)

    words = said(Outside(f), change)
    assert words.count("the closure's") == 4 and words.endswith("; and 2 more")
    assert len(words) < 500
