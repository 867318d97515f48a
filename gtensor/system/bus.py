"""The event bus: what gtensor is doing, told to listeners.

    with gt.listen(listener):
        train()

A listener is any object with some of the methods in `METHODS`; each is called with one event. Which
of them it has is looked up once, when it is registered. `bus` has one tuple per kind of event.
Without listeners the tuple is empty, and a hot path does no more than read it. Listeners do not
change which path runs: the path or rule that would have been called is called by `heard`.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter_ns
from types import CodeType
from typing import Any, TypeAlias, TypeVar

from gtensor.system.fork_safety import free_at_forks
from gtensor.system.frees import FreeListener
from gtensor.system.interrupts import Undone
from gtensor.system.source_line import place, user_frame

Told: TypeAlias = Callable[[Any], object]
Listener = TypeVar("Listener")
_frame_at = sys._getframe
_now = perf_counter_ns
_new = object.__new__
_next_number = itertools.count(1).__next__
_NO_PARAMS: dict[str, Any] = {}

KINDS = {  # attribute of `bus` -> the methods that make an object a listener of that kind
    "ops": ("op_begins", "op_ends"),
    "phases": ("phase_begins", "phase_ends"),
    "memory": ("allocated", "freed"),
    "modules": ("module_begins", "module_ends"),
    "ranges": ("range_begins", "range_ends"),
    "segments": ("segment",),
    "shortages": ("short_of_memory",),
    "waits": ("waited",),
    "batches": ("fetched",),
    "gradients": ("gradient_written",),
    "leaves": ("gradient_complete",),
}
METHODS = tuple(method for methods in KINDS.values() for method in methods)
_ALIKE = 3  # letters in which a misspelt method agrees with the one meant
_BEGINNINGS = {method[:_ALIKE] for method in METHODS}


class ListenerError(RuntimeError):
    """A listener raised at the end of an op that has run; the listener's error is its cause."""


class _Here(threading.local):
    """State of this thread, kept only while there are listeners.

    `module` is the running nn.Module's dotted path, `phase` is "backward", "update" or "", and
    `instruction` is, in a backward pass, the user's instruction that recorded the running rule.
    `number` is that of the latest op whose end was told. `recorder` is the listener that records
    this thread's step for `gt.capture` (`execution.steps.recorder`). `replaying`, which needs no
    listener: whether one is replayed on the CPU, whose memory then comes from the arena earlier.
    """

    module = ""
    phase = ""
    instruction: tuple[CodeType, int] | None = None
    number = 0
    recorder: Any = None
    replaying = False


here = _Here()


def _nothing(event: object) -> None:
    """In the place of a method that a listener lacks."""


def _method(listener: object, name: str) -> Told:
    found = getattr(listener, name, _nothing)
    return found if callable(found) else _nothing


class Registered:
    """A listener, once for each time that it is registered: by kind its method or pair of them."""

    __slots__ = ("told",)

    def __init__(self, listener: object) -> None:
        self.told: dict[str, Any] = {}
        for kind, names in KINDS.items():
            methods = tuple(_method(listener, name) for name in names)
            if any(method is not _nothing for method in methods):
                self.told[kind] = methods if len(methods) > 1 else methods[0]


class Bus:
    """The listeners, by kind of event.

    `listeners` are all of them; while there is any, modules and phases are kept in `here`. A kind
    with a begin and an end, or an allocation and a free, has pairs of methods; another has methods.
    """

    __slots__ = ("_lock", "listeners", *KINDS)

    listeners: tuple[Registered, ...]
    ops: tuple[tuple[Told, Told], ...]
    phases: tuple[tuple[Told, Told], ...]
    memory: tuple[tuple[Told, Told], ...]
    modules: tuple[tuple[Told, Told], ...]
    ranges: tuple[tuple[Told, Told], ...]
    segments: tuple[Told, ...]
    shortages: tuple[Told, ...]
    waits: tuple[Told, ...]
    batches: tuple[Told, ...]
    gradients: tuple[Told, ...]
    leaves: tuple[Told, ...]

    def __init__(self) -> None:
        self._lock = threading.RLock()
        free_at_forks(self._lock)
        self.listeners = ()
        self._sort()

    def add(self, registered: Registered) -> None:
        """Register a listener, after those that are registered already."""
        with self._lock:
            self.listeners = (*self.listeners, registered)
            self._sort()

    def remove(self, registered: Registered) -> None:
        """Undo an `add`; without one, or a second time, it does nothing."""
        with self._lock:
            self.listeners = tuple(one for one in self.listeners if one is not registered)
            self._sort()

    def _sort(self) -> None:
        for kind in KINDS:  # the listeners are read for each: a handler may add or remove one
            setattr(self, kind, tuple(registered.told[kind] for registered in self.listeners
                                      if kind in registered.told))


bus = Bus()


@contextmanager
def listen(listener: Listener) -> Iterator[Listener]:
    """Call the listener's methods at events, in all threads, until the block ends.

    Methods, each with one event: `op_begins`, `op_ends` (`OpEvent`); `phase_begins`, `phase_ends`
    (`PhaseEvent`); `module_begins`, `module_ends` (`ModuleEvent`); `range_begins`, `range_ends`
    (`RangeEvent`); `allocated`, `freed` (`MemoryEvent`); `segment` (`SegmentEvent`);
    `short_of_memory` (`ShortageEvent`); `waited` (`WaitEvent`); `fetched` (`BatchEvent`);
    `gradient_written`, `gradient_complete` (`GradientEvent`). A listener has those that it wants.
    Several listeners are called in the order of their blocks, at an end in the reverse order.

    An event is told in the thread in which it happens. The end follows for every event whose begin
    returned, also after an error, which `event.error` then is. An error of `op_ends` after the op
    has run is raised as ListenerError, so that it is not taken for one of the op; errors of
    `freed`, `segment`, `short_of_memory` and `waited`, which come in the middle of the work of the
    arena, are printed; all others are raised as they are.

    Read what you need of an event within the method: an `OpEvent` refers to arrays, which it would
    keep alive, and to the walk, which goes on. A method must not call ops, as it would be told of
    those in turn; those whose errors are printed must not allocate either.

    Raises TypeError for an object without any of these methods, or with a misspelt one.
    """
    _check(listener)
    registered = Registered(listener)
    with Undone(partial(bus.remove, registered)):
        bus.add(registered)
        yield listener


def _check(listener: object) -> None:
    """Raise TypeError for an object that would not be told of what it wants."""
    from difflib import get_close_matches  # late: programs without a listener need not load it

    name = type(listener).__name__
    own = {method for method in METHODS if _method(listener, method) is not _nothing}
    for other in dir(listener):
        if other in METHODS or other[:_ALIKE] not in _BEGINNINGS:
            continue
        meant = next(iter(get_close_matches(other, METHODS, 1, 0.85)), None)
        if meant is not None and meant not in own and callable(getattr(listener, other, None)):
            raise TypeError(f"the listener {name} has a method {other}, which no event calls; did "
                            f"you mean {meant}?")
    if not own:
        raise TypeError(f"a listener {name} without any method of a listener given; wanted one of "
                        + ", ".join(METHODS))


# -- events ----------------------------------------------------------------------------------------


class _Event:
    """Common to events: where in the program they happen. Made only for listeners."""

    __slots__ = ("module",)

    module: str

    def source(self) -> str:
        """The user's line, as `file:line: text`; ask within the listener's method only.

        In a backward pass it is the line that recorded the running rule.
        """
        instruction = here.instruction
        if instruction is None:
            frame = _frame_at(1)
            while frame.f_code.co_filename != __file__ and frame.f_back is not None:
                frame = frame.f_back  # out of the listener, which may be the user's own code
            frame = user_frame(frame)
            instruction = frame.f_code, frame.f_lasti
        return place(*instruction)

    def __repr__(self) -> str:
        told = [f"{name}={getattr(self, name)!r}" for name in self.__slots__
                if isinstance(getattr(self, name, None), (str, int, float, type(None)))]
        return f"<{type(self).__name__} {', '.join(told)}>"


class OpEvent(_Event):
    """An op's path ("forward") or its backward rule ("backward") runs.

    Attributes:
        op: the op's definition; `name` is its name.
        phase: "forward" or "backward". Updates by an optimizer are "forward".
        function: the path, or the rule, that is called.
        args: the positional arguments of the path (arrays, numbers), or of the rule (the namespace,
            the step, the gradient).
        params: the keyword arguments of the path; also `out`, for a write in place.
        module: the dotted path of the running nn.Module, in a rule that of the op's; "" outside.
        number: unique in the process; that of a rule is the number of its path, 0 if that was not
            told.
        begin, end: at the end, the host's clock around the path or rule (`perf_counter_ns`).
        result: at the end, what the path returned (an array, or a tuple with extra arrays).
        error: at the end, the error if one was raised, only until all listeners are told.
    """

    __slots__ = ("args", "begin", "end", "error", "function", "number", "op", "params", "phase",
                 "result")

    op: Any
    phase: str
    function: Callable[..., Any]
    args: Sequence[Any]
    params: dict[str, Any]
    number: int
    begin: int
    end: int
    result: Any
    error: BaseException | None

    @property
    def name(self) -> str:
        """The op's name."""
        return str(self.op.name)

    @property
    def arrays(self) -> list[Any]:
        """The arrays given: inputs of a path; of a rule, the gradient and the saved arrays."""
        given: Sequence[Any] = self.args
        if self.phase == "backward":
            _, step, g = given
            given = (g, *step.saved)
        return [value for value in given if hasattr(value, "nbytes") and hasattr(value, "shape")]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays given and, at the end of a path, of its results."""
        made = self.result if isinstance(self.result, tuple) else (self.result,)
        return sum(getattr(array, "nbytes", 0) for array in (*self.arrays, *made))

    def __repr__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        return f"<OpEvent {self.name} {self.phase}{where}>"


class _Block(_Event):
    """A block of code; `error` is, at its end, the error if one was raised, only until all
    listeners are told.
    """

    __slots__ = ("error", "name")

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.module = module
        self.error: BaseException | None = None


class PhaseEvent(_Block):
    """A phase of a training step: `name` is "backward", or "update" (an optimizer's step).

    `module` is the running nn.Module's path, of an update the optimizer's class.
    """

    __slots__ = ()


class ModuleEvent(_Block):
    """The call of an nn.Module: `name` and `module` are its dotted path."""

    __slots__ = ()


class RangeEvent(_Block):
    """A range of the user's, or of gtensor where it is neither op, phase nor module.

    Attributes: `name`; `category` ("user", "data", "communication" or "graph"); `payload`, a number
    or None; `module`, the path of the running nn.Module.
    """

    __slots__ = ("category", "payload")

    def __init__(self, name: str, payload: float | None, category: str) -> None:
        super().__init__(name, here.module)
        self.payload = payload
        self.category = category


class MemoryEvent(_Event):
    """A block was allocated on a device, or that block is about to be freed: the same event.

    On the CPU, arrays below `settings.arena_min_bytes` have no block. Frees are told of blocks that
    were allocated while there was a listener for them.

    Attributes: `device` (its name), `address`, `nbytes` as asked for, `size` as rounded up,
    `stream` (an id), `label` (the op), `serial` (unique on the device), `module` and `phase`
    ("backward", "update" or "") at the allocation.
    """

    __slots__ = ("address", "device", "label", "nbytes", "phase", "serial", "size", "stream")

    def __init__(self, device: object, block: Any) -> None:
        self.device = str(device)
        self.address: int = block.ptr
        self.nbytes: int = block.nbytes
        self.size: int = block.size
        self.stream: int = block.stream
        self.label: str = block.label
        self.serial: int = block.serial
        self.module = here.module
        self.phase = here.phase


class SegmentEvent(_Event):
    """An arena acquired a segment of `nbytes` bytes at `address`, or released it.

    `origin` is the arena's segment source, `acquired` False for a release.
    """

    __slots__ = ("acquired", "address", "nbytes", "origin")

    def __init__(self, origin: object, address: int, nbytes: int, acquired: bool) -> None:
        self.origin = origin
        self.address = address
        self.nbytes = nbytes
        self.acquired = acquired
        self.module = here.module


class ShortageEvent(_Event):
    """A free list had no room for `nbytes` bytes; what the arena of segment source `origin` does.

    `step`: "borrow" (memory of another stream), "release" (free segments), "collect" (Python's
    garbage), "wait" (for streams that use freed memory), "fail" (MemoryError follows).
    """

    __slots__ = ("nbytes", "origin", "step")

    def __init__(self, origin: object, nbytes: int, step: str) -> None:
        self.origin = origin
        self.nbytes = nbytes
        self.step = step
        self.module = here.module


class WaitEvent(_Event):
    """Stream `waiter` was made to wait for work of stream `producer`; no thread blocks.

    `producer` is None for memory that is reused: then it is a stream that used it before.
    """

    __slots__ = ("producer", "waiter")

    def __init__(self, waiter: int, producer: int | None) -> None:
        self.waiter = waiter
        self.producer = producer
        self.module = here.module


class BatchEvent(_Event):
    """A loader returns a batch: `number` of `epoch`, after the loop waited `seconds` for it."""

    __slots__ = ("epoch", "loader", "number", "seconds")

    def __init__(self, loader: object, epoch: int, number: int, seconds: float) -> None:
        self.loader = loader
        self.epoch = epoch
        self.number = number
        self.seconds = seconds
        self.module = here.module


class GradientEvent(_Event):
    """A gradient of the running backward pass, which a listener may read and must not write.

    For `gradient_written` it is what the rule of `record` (None: the caller of backward) gives to
    `node`, before it is added to the gradients of other rules. For `gradient_complete` `node` is a
    leaf, `record` is None, and `array` is the sum of all its gradients in this pass, after its
    hooks; `.grad` has it, or the sum with it, once the pass has ended without an error.
    """

    __slots__ = ("array", "node", "record")

    def __init__(self, record: Any, node: Any, array: Any) -> None:
        self.record = record
        self.node = node
        self.array = array
        self.module = here.module

    def is_of(self, tensor: Any) -> bool:
        """Whether it is the gradient of that tensor."""
        return tensor._node is self.node


# -- telling ---------------------------------------------------------------------------------------


def heard(
    op: Any, phase: str, function: Callable[..., Any], args: Sequence[Any],
    params: dict[str, Any] = _NO_PARAMS,
) -> Any:
    """`function(*args, **params)`, with its begin and its end told to `bus.ops`."""
    told = bus.ops
    if phase == "forward":
        number = here.number = _next_number()
    else:
        number = args[1].record.number
    event = _new(OpEvent)  # and its attributes: half the time of an __init__
    event.op, event.phase, event.args, event.params = op, phase, args, params
    event.function = function
    event.number, event.module, event.result, event.error = number, here.module, None, None
    begun = 0
    try:
        for begins, _ in told:
            if begins is not _nothing:
                begins(event)
            begun += 1
        event.begin = _now()
        event.result = function(*args, **params)
        event.end = _now()
    except BaseException as error:  # undone
        event.end = _now()
        if begun < len(told):  # a listener raised: the op has not begun
            event.begin = event.end
        _end_with(event, told[:begun], error)
        raise
    if number != here.number:
        here.number = number
    try:
        while begun:
            begun -= 1
            told[begun][1](event)
    except Exception as error:
        _end_with(event, told[:begun], error)
        raise ListenerError(
            f"a listener raised {type(error).__name__} at the end of {op.name} {phase}, which has "
            f"run: {error}") from error
    except BaseException as error:  # undone
        _end_with(event, told[:begun], error)
        raise
    return event.result  # which a recorder may have made an array of


def _end_with(event: Any, told: Sequence[tuple[Told, Told]], error: BaseException) -> None:
    """Tell the ends of what an error ended, newest listener first; their errors become notes."""
    try:
        event.error = error
        for _, ends in reversed(told):
            try:
                ends(event)
            except Exception as another:
                error.add_note(f"a listener raised {type(another).__name__} then: {another}")
    finally:
        event.error = None  # the error's traceback refers to the event


class around:
    """The block, with its begin and its end told. A class, as that enters faster than a generator.
    """

    __slots__ = ("_begun", "_event", "_told")

    def __init__(self, told: Sequence[tuple[Told, Told]], event: _Block) -> None:
        self._told = told
        self._event = event
        self._begun = 0

    def __enter__(self) -> None:
        event = self._event
        try:
            for begins, _ in self._told:
                begins(event)
                self._begun += 1
        except BaseException as error:  # undone
            _end_with(event, self._told[:self._begun], error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            _end_with(self._event, self._told[:self._begun], error)
            return
        while self._begun:
            self._begun -= 1
            try:
                self._told[self._begun][1](self._event)
            except BaseException as another:  # undone
                _end_with(self._event, self._told[:self._begun], another)
                raise


def phase(name: str, module: str = "") -> AbstractContextManager[None]:
    """The block is a phase of a training step; `module` is what runs in it, such as "Adam"."""
    return _phase(name, module) if bus.listeners else _NO_PHASE


_NO_PHASE = nullcontext()


@contextmanager
def _phase(name: str, module: str) -> Iterator[None]:
    before = here.phase, here.module, here.instruction
    try:
        here.phase, here.instruction = name, None
        with around(bus.phases, PhaseEvent(name, module or here.module)):
            yield
    finally:
        here.phase, here.module, here.instruction = before


def tell(listeners: Sequence[Told], event: _Event) -> None:
    """Tell an event; a listener's error is raised."""
    for told in listeners:
        told(event)


def tell_aside(listeners: Sequence[Told], event: _Event) -> None:
    """Tell an event in the middle of work that must be completed: errors are only printed."""
    for told in listeners:
        try:
            told(event)
        except Exception as error:
            _Aside(error)


class _Aside:
    """Hands an error to `sys.unraisablehook`, whose argument only the interpreter can make."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def __del__(self) -> None:
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame


def tell_allocated(device: object, block: Any) -> None:
    """A device allocated a block; its free will be told, too."""
    event = MemoryEvent(device, block)
    if any(freed is not _nothing for _, freed in bus.memory):
        _frees.listen(block, event)
    for allocated, _ in bus.memory:
        allocated(event)


def _tell_freed(event: MemoryEvent) -> None:
    tell_aside([freed for _, freed in bus.memory], event)


_frees = FreeListener(_tell_freed)
