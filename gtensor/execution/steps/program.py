"""A recording as a program: straight text of its calls, which a replay runs.

Each value is a local variable, deleted after its last use, so that a replay needs the memory that
the step does. Lasting arrays (parameters, buffers) are read through weak references: a program
whose parameters were replaced does not run.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gtensor.backend import get_device, owner
from gtensor.backend.host_device import REPLAYED
from gtensor.engine.handle.storage import UNREAD, Storage
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run.writable import count_write
from gtensor.engine.tape.execute import Aside
from gtensor.engine.tape.op import registry
from gtensor.execution.steps.comparing import named as _named
from gtensor.execution.steps.comparing import values_of
from gtensor.execution.steps.listing import Listing, lives_of, makes, reads
from gtensor.execution.steps.numbers import Number
from gtensor.execution.steps.passes import improved
from gtensor.execution.steps.recorder import Call, Constant, Recorder, Stored, Value, Written
from gtensor.func.trees import leaves
from gtensor.settings import settings
from gtensor.system import structure
from gtensor.system.bus import bus, heard, here
from gtensor.system.source_line import place
from gtensor.system.written_code import written

if TYPE_CHECKING:
    from types import CodeType

    from gtensor.backend.typing import Array
    from gtensor.execution.steps.results import Results

_LITERAL = (bool, int, float, str, type(None))


class Moved(Exception):
    """An array that the program reads is gone, or a `.grad` is not as it was recorded."""


class NoGraph(RuntimeError):
    """A program does what no graph can, such as a copy to the host; nothing has run."""


class Program:
    """A recorded step that can be replayed; `state` is what it takes for granted."""

    def __init__(
        self, recording: Recorder, results: Results, state: tuple[int, Any], fuse: bool | str
    ) -> None:
        self.recording = recording
        self.results = results
        self.state = state
        self._pinned: dict[int, weakref.ref[Any]] = {}  # owners of arguments: see `pin`
        lasting = [facts.array() for facts in recording.values
                   if facts.kind == "external" and facts.array is not None]
        self._outside = {id(owner(array)) for array in lasting if array is not None}
        self.listing = self.arranged(improved(recording, results.numbers(), fuse))
        text = _Text(self.listing)
        self.text = text.whole()
        self._external = text.external  # weak references to arrays, in the text's order
        self._found = [(own, ref, ref is not None and ref() is not None
                        and id(owner(ref())) in self._outside)
                       for own, ref in recording.found.items()]
        self._lasting = bool(text.external or self._found)
        self._run = written(self.text, text.scope, "replay", "replay")
        places = [device for device in recording.devices if device.type != "cpu"]
        self._place = places[0] if len(places) == 1 else None  # it may not be CuPy's current one
        self._lines = text.lines
        self._told: Callable[..., list[Array]] | None = None
        self._build = results.builder()
        self._numbers = lives_of(recording)
        self._large = any(facts.kind == "made" and facts.dtype is not None
                          and REPLAYED * math.prod(facts.shape) * facts.dtype.itemsize
                          >= settings.arena_min_bytes for facts in self.listing.values)

    def given(self, tensors: Sequence[Tensor], numbers: dict[str, Number]) -> Sequence[Tensor]:
        """The arguments of `replay`: tensors, and the live numbers as such."""
        if not self._numbers:
            return tensors
        return [*tensors, *[number.tensor(numbers) for number in self._numbers]]

    def _telling(self) -> Callable[..., list[Array]]:
        """The same text, whose calls are told to listeners as those of the step were."""
        text = _Text(self.listing, told=True)
        return written(text.whole(), text.scope, "replay", "replay")

    def arranged(self, listing: Listing) -> Listing:
        """The calls that the text runs."""
        return listing

    def replay(self, arguments: Sequence[Tensor]) -> Any:
        """Run the program on these arguments. Raises Moved before anything is done."""
        lasting = self.lasting(arguments) if self._lasting else ()
        if self._place is not None:
            with self._place.running(None):
                return self._build(arguments, self.run(arguments, lasting))
        return self._build(arguments, self.run(arguments, lasting))

    def serve(self, state: tuple[int, Any]) -> None:
        """Take another state for granted, in which the step was the same program."""
        self.state = state

    def pin(self, other: Recorder) -> None:
        """Note which arguments lay in the same memory in another recording of this program.

        Such a one may be what the step reads from outside, too, which a recording cannot tell.
        """
        pairs = zip(self.recording.owners, other.owners, strict=True)
        self._pinned = {i: one for i, (one, two) in enumerate(pairs) if one() is two()}

    def fits(self, arguments: Sequence[Tensor]) -> bool:
        """Whether arguments share memory with what is outside just as those of the recordings."""
        pinned, outside = self._pinned, self._outside
        for i, ref in pinned.items():
            if ref() is not owner(arguments[i]._array):
                return False
        if outside:
            for x in arguments:
                if id(owner(x._array)) in outside:
                    return False
        return True

    def lasting(self, arguments: Sequence[Tensor]) -> list[Array]:
        """The arrays that the text reads from outside. Raises Moved if one is gone.

        Or if a `.grad` of before the step is there that was not, or another one is read.
        """
        found: list[Any] = [ref() for ref in self._external]
        for array in found:
            if array is None:
                raise Moved
        for own, ref, used in self._found:
            leaf: Any = arguments[own]._node if type(own) is int else own
            grad = leaf.grad
            if (grad is None) is not (ref is None) or used and grad._array is not ref():
                raise Moved
        return found

    def run(self, arguments: Sequence[Tensor], lasting: Sequence[Array]) -> list[Array]:
        """Run the text; the arrays of the results."""
        run = self._run
        if bus.listeners:
            run = self._told = self._told or self._telling()
        if self._large:
            here.replaying = True
        try:
            return run(arguments, lasting)
        except BaseException as error:  # undone: the error is told where it happened
            self._explain(error, run.__code__)
            raise
        finally:
            if self._large:
                here.replaying = False

    def _explain(self, error: BaseException, code: CodeType) -> None:
        """Note the user's line, and what of the step is done."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not code:
            trace = trace.tb_next
        if trace is None:
            return
        done, call = self._lines[:trace.tb_lineno - 1], self._lines[trace.tb_lineno - 1]
        effects = [_effect(c) for c in dict.fromkeys(done) if c is not None]
        told = ", ".join(filter(None, effects)) or "nothing that lasts"
        name = "" if call is None else f" at {_named(call)} ({place(*call.where)})"
        error.add_note(f"a captured step ended{name}; done before: {told}")

    def report(self) -> str:
        """Its calls in numbers."""
        calls = [c for c in self.recording.calls if isinstance(c, Call)]
        return f"{len(calls)} calls recorded, {sum(c.host for c in calls)} of them of Python"


def _effect(call: Any) -> str:
    """What a call leaves behind, in words; "" for a value alone."""
    if isinstance(call, Call):
        return call.name if call.host else ""
    return "gradients stored" if isinstance(call, Stored) else "a tensor written"


class _Text:
    """Writes the text of a listing."""

    def __init__(self, listing: Listing, told: bool = False) -> None:
        self._is_told = told
        self.scope: dict[str, Any] = {"asarray": np.asarray}
        self.external: list[weakref.ref[Any]] = []
        self.lines: list[Any] = []  # by line of the text: the call, or None
        self._names: dict[int, str] = {}  # id of an object in the scope -> its name
        self._listing = listing

    def whole(self) -> str:
        calls, values, found = self._listing.calls, self._listing.values, self._listing.returned
        uses: dict[int, int] = {}  # value -> the call that uses it last
        for at, call in enumerate(calls):
            for number in reads(call):
                uses[number] = at
        last: dict[int, list[int]] = {}
        returned = {*found}
        for number, at in uses.items():
            if number not in returned:
                last.setdefault(at, []).append(number)
        body: list[tuple[str, Any]] = []
        for number, facts in enumerate(values):
            if facts.kind == "argument" and (number in uses or number in returned):
                body.append((f"v{number} = x[{facts.argument}]._array", None))
        outside = [n for n, facts in enumerate(values)
                   if facts.kind == "external" and (n in uses or n in returned)]
        for number in outside:
            self.external.append(values[number].array)  # type: ignore[arg-type]
        if outside:
            body.append((f"[{', '.join(f'v{n}' for n in outside)}] = external", None))
        for at, call in enumerate(calls):
            body += [(line, call) for line in self._lines(call)]
            gone = last.get(at, [])
            unused = [n for n in makes(call) if n not in uses and n not in returned]
            if gone or unused:
                body.append((f"del {', '.join(f'v{n}' for n in sorted({*gone, *unused}))}", None))
        body.append((f"return [{', '.join(f'v{n}' for n in found)}]", None))
        self.lines = [None, *[call for _, call in body]]
        return "def replay(x, external):\n" + "".join(f"    {line}\n" for line, _ in body)

    def _lines(self, call: Any) -> list[str]:
        if isinstance(call, Written):
            return [f"{self._name(counter(call))}(x)"]
        if isinstance(call, Stored):
            values = "".join("None, " if n is None else f"v{n}, " for _, n, _ in call.entries)
            return [f"{self._name(storing(call))}(x, ({values}))"]
        if call.host:
            return self._host_lines(call)
        function = _short(call, self._listing)
        if self._is_told and (call.op is not None or not call.kind):  # collectives have a range
            function = functools.partial(tell, call, function)
        given = [self._code(a) for a in call.args]
        given += [f"{key}={self._code(a)}" for key, a in call.params.items()]
        text = f"{self._name(function)}({', '.join(given)})"
        read = {*values_of((call.args, call.params))}
        made = ["_" if n is None or n in read else f"v{n}" for n in call.made]
        if not call.several:
            if made == ["_"]:
                return [text]
            return [f"{made[0]} = " + (f"asarray({text})" if call.asarray else text)]
        lines = [f"{', '.join(made)}{',' * (len(made) == 1)} = {text}"]
        return lines + [f"{made[i]} = asarray({made[i]})" for i in call.asarray if made[i] != "_"]

    def _host_lines(self, call: Call) -> list[str]:
        numbers = [n for n in call.made if n is not None]
        text = f"{self._name(again(call))}()"
        if not numbers:
            return [text]
        return [f"{', '.join(f'v{n}' for n in numbers)}, = {text}"]

    def _code(self, value: Any) -> str:
        if isinstance(value, Value):
            return f"v{value.number}"
        if isinstance(value, _LITERAL) and type(value) in _LITERAL and (
                type(value) is not float or math.isfinite(value)):
            return repr(value)
        if isinstance(value, (tuple, list)) and values_of(value):
            inner = ", ".join(map(self._code, value))
            if hasattr(value, "_fields"):
                return f"{self._name(type(value))}({inner})"
            if isinstance(value, list):
                return f"[{inner}]"
            return f"({inner}{',' * (len(value) == 1)})"
        if type(value) is dict and values_of(value):
            return "{" + ", ".join(f"{k!r}: {self._code(v)}" for k, v in value.items()) + "}"
        if isinstance(value, Constant):
            value = value.array
        return self._name(value)

    def _name(self, value: Any) -> str:
        name = self._names.get(id(value))
        if name is None:
            kind = getattr(value, "__name__", type(value).__name__)
            plain = "".join(c if c.isalnum() else "_" for c in kind)
            name = self._names[id(value)] = f"{plain}_{len(self._names)}"
            self.scope[name] = value
        return name


def _short(call: Call, listing: Listing) -> Callable[..., Any]:
    """What a call's path would choose to run for these shapes, dtypes and layouts."""
    prepare = getattr(getattr(call.function, "func", call.function), "prepare", None)
    if prepare is not None:
        given = [listing.values[a.number] if isinstance(a, Value) else a for a in call.args]
        return prepare(*given, **call.params) or call.function
    plain = getattr(call.function, "plain", None)
    if not isinstance(plain, np.ufunc) or call.params.keys() - {"out"}:
        return call.function
    sizes = 1
    for number in values_of(call.args):
        sizes *= max(1, math.prod(listing.values[number].shape))
    return plain if 16 * sizes < settings.arena_min_bytes else call.function


def tell(call: Call, function: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """A call of a program, told to listeners where and as what it was recorded."""
    if not bus.ops:
        return function(*args, **params)
    before = here.phase, here.module, here.instruction
    try:
        here.phase, here.module = call.within
        here.instruction = call.where
        op = call.op or registry.get(call.name) or Aside(
            call.name, call.device or get_device("cpu"))
        return heard(op, "forward", function, args, params)
    finally:
        here.phase, here.module, here.instruction = before


def counter(call: Written) -> Callable[[Sequence[Tensor]], None]:
    """Counts a write, as the recorded one was."""
    argument, tensor = call.argument, call.tensor
    if argument is not None and call.itself:
        return lambda x: count_write(x[argument])
    if argument is not None:
        return lambda x: count_other(x[argument]._own_storage())
    if tensor() is not None:
        def count(x: Sequence[Tensor]) -> None:
            found = tensor()
            if found is not None:
                count_write(found)

        return count
    storage = call.storage
    return lambda x: count_other(storage)


def count_other(storage: Storage) -> None:
    """A write through a handle that the replay does not have."""
    storage.version += 1
    storage.writer = 0


def storing(call: Stored) -> Callable[[Sequence[Tensor], Any], None]:
    """Makes arrays the `.grad` of leaves."""
    plan = [(node, at, first) for at, (node, _, first) in enumerate(call.entries)
            if not isinstance(node, weakref.ref)]  # a leaf of the step itself

    def store(x: Sequence[Tensor], arrays: Sequence[Any]) -> None:
        for node, at, first in plan:
            leaf: Any = x[node]._node if type(node) is int else node
            if first:
                refuse_gradient(leaf)
            array = arrays[at]
            leaf.grad = None if array is None else wrap(array, leaf.device, UNREAD)

    return store


def refuse_gradient(leaf: Any) -> None:
    """Raise RuntimeError if a leaf has a gradient, to which a program cannot add."""
    if leaf.grad is not None:
        raise RuntimeError("a captured step found a gradient where there was none when it was "
                           "recorded; call zero_grad() within the step")


def again(call: Call) -> Callable[[], Any]:
    """The call of a function that reads or changes Python's state; its arrays and integers."""
    function, args, kwargs = call.function, call.args, call.params
    prepare = getattr(function, "prepare", None)
    if prepare is not None:
        return _Prepared(functools.partial(prepare, *args, **kwargs))
    places = [i for i, n in enumerate(call.made) if n is not None]
    if not places:
        return lambda: function(*args, **kwargs)

    def again() -> list[Any]:
        found = leaves(function(*args, **kwargs))
        return [x._array if isinstance(x, Tensor) else x
                for x in [found[i][1] for i in places]]

    return again


class _Prepared:
    """A call of Python's that the first replay prepares."""

    def __init__(self, prepare: Callable[[], Callable[[], None]]) -> None:
        self._prepare = prepare
        self._run: Callable[[], None] | None = None
        self._epoch = -1

    def __call__(self) -> None:
        if self._epoch != structure.epoch:
            self._run, self._epoch = self._prepare(), structure.epoch
        assert self._run is not None
        self._run()
