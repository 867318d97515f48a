"""Modes of the engine, per thread: whether ops are recorded, what is differentiated."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gtensor.system.bus import here

if TYPE_CHECKING:
    from gtensor.engine.handle.node import Node

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
# Of a `Block`: its mark, the mode before it, the block around it.
_Block: TypeAlias = "tuple[object, Any, _Block | None]"


_recording = ContextVar("grad_enabled", default=True)
grad_enabled = _recording.get  # whether this thread (or asynchronous task) records ops
record_ops = _recording.set
_blocks: ContextVar[_Block | None] = ContextVar("blocks", default=None)
innermost = _blocks.get  # the innermost `grad_mode` of this thread or task
_set_innermost = _blocks.set
# The `run.casting.Casts` of the `autocast` block that this thread or task runs, or None.
_casts: ContextVar[Any] = ContextVar("casts", default=None)
current_casts = _casts.get
set_casts = _casts.set


class _State(threading.local):
    recomputing = False
    # of the running checkpointed functions, outermost first: (what `same_again` has returned there,
    # whether it is the second run)
    noted: tuple[tuple[deque[Any], bool], ...] = ()
    differentiated: frozenset[Node] = frozenset()  # arguments of functions that `grad` is running
    levels: tuple[Any, ...] = ()  # `tape.levels.Level`s of the running transforms, innermost last
    apart: set[int] | None = None  # `seq` of nodes that depend on none of `differentiated`


STATE = _State()


EXCHANGES = "exchanges"


def again(function: F, kind: str = "") -> F:
    """The function, which replays of a captured step call again: it reads or changes Python state.

    What it computes is not recorded; its result may have Tensors, and integers that it drew. Its
    kind is "draws" if it only makes its result, "python" if it touches no tensor's memory,
    EXCHANGES if all ranks call it in the order of their other collectives.
    """
    function.again = kind  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = here.recorder
        if recorder is None:
            return function(*args, **kwargs)
        return recorder.host(function, args, kwargs)

    return call  # type: ignore[return-value]


class Block(contextlib.ContextDecorator):
    """Another mode in the block or the decorated function, in this thread or asynchronous task.

    An interrupt at the entry of `__exit__` skips the reset of the mode. `__del__` then resets it
    when this object is collected with the traceback, unless another block set the mode meanwhile.
    """

    _mark: object = ""  # if an interrupt ends `__init__`; equals no block's mark
    _mode: Any  # the mode in the block
    # Of a kind of modes: reads and sets the mode, reads and sets the innermost block.
    _read: Callable[[], Any]
    _set: Callable[[Any], object]
    _innermost: Callable[[], _Block | None]
    _set_innermost: Callable[[_Block | None], object]

    def __enter__(self) -> None:
        mode = self._mode
        self._set_innermost((self._mark, self._read(), self._innermost()))
        self._set(mode)

    def __exit__(self, *exception: object) -> None:
        block = self._innermost()
        while block is not None and block[0] is not self._mark:
            block = block[2]  # an inner block that an interrupt ended, or that ended out of order
        if block is not None:
            self._restore(block)

    def __del__(self) -> None:
        block = self._innermost()
        if block is not None and block[0] is self._mark:
            self._restore(block)

    def _restore(self, before: _Block) -> None:
        """The mode, then the block, that were before."""
        _, mode, block = before
        self._set(mode)
        self._set_innermost(block)


class grad_mode(Block):
    """Ops in the block (or the decorated function) are recorded or not, in this thread."""

    _read, _set = staticmethod(grad_enabled), staticmethod(record_ops)
    _innermost, _set_innermost = staticmethod(innermost), staticmethod(_set_innermost)

    def __init__(self, enabled: bool) -> None:
        self._mode = enabled
        self._mark = object()

    def _recreate_cm(self) -> grad_mode:
        """A new block for each call of a decorated function."""
        return grad_mode(self._mode)


class no_grad(grad_mode):
    """Ops in the block (or the decorated function) are not recorded, in this thread."""

    def __init__(self) -> None:
        super().__init__(False)


class enable_grad(grad_mode):
    """Ops in the block are recorded again, inside a `no_grad()` block."""

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(grad_mode):
    """Record ops in this thread, or not: from the call on, or for a `with` block.

    An interrupt between the call and its block leaves the mode changed, as after the call alone;
    `no_grad()` and `enable_grad()` change it within the block only. The first block of the object
    restores the mode before the call, a later block the mode before itself.
    """

    # (thread, mode, block) before the call, until a block or function uses it
    _before: tuple[int, bool, _Block | None] | None = None

    def __init__(self, enabled: bool) -> None:
        super().__init__(enabled)
        self._before = threading.get_ident(), grad_enabled(), innermost()
        record_ops(enabled)
        block = innermost()
        if block is not None and block[0] is not None:
            _set_innermost((None, enabled, block))  # so that a late `__del__` keeps the mode

    def __enter__(self) -> None:
        before, self._before = self._before, None
        if before is None or before[0] != threading.get_ident():
            return super().__enter__()
        _set_innermost((self._mark, *before[1:]))
        record_ops(self._mode)

    def __call__(self, function: F) -> F:
        # as a decorator it changes the mode in the function's calls only
        if self._before is not None:
            self._restore(self._before)
            self._before = None
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Whether this thread records ops."""
    return grad_enabled()


@contextlib.contextmanager
def casting(casts: Any) -> Iterator[None]:
    """Within the block, in this thread, cast as by `casts`, or not at all."""
    before = current_casts()
    try:
        set_casts(None if casts is None else casts.apart())
        yield
    finally:
        set_casts(before)


@contextlib.contextmanager
def differentiating(arguments: Iterable[Node]) -> Iterator[None]:
    """Within the block, in this thread, refuse arrays of values that depend on the arguments."""
    before = STATE.differentiated, STATE.apart
    STATE.differentiated, STATE.apart = before[0].union(arguments), set()
    try:
        yield
    finally:
        STATE.differentiated, STATE.apart = before


@contextlib.contextmanager
def recomputing() -> Iterator[None]:
    """A checkpointed function runs again, as in its first run outside of all transforms.

    Counts per step (batch norm's) must not change. The walk that needs the values may run within
    transforms, whose levels would take up what the function differentiates or draws.
    """
    before = STATE.recomputing, STATE.levels
    STATE.recomputing, STATE.levels = True, ()
    try:
        yield
    finally:
        STATE.recomputing, STATE.levels = before


@contextlib.contextmanager
def noting(values: deque[Any], again: bool) -> Iterator[None]:
    """A checkpointed function runs: `same_again` notes its values, or returns the noted ones."""
    before = STATE.noted
    STATE.noted = ((values, True),) if again else (*before, (values, False))
    try:
        yield
    finally:
        STATE.noted = before


def same_again(make: Callable[[], T]) -> T:
    """make(); in the second run of a checkpointed function what it returned in the first.

    For state that a module replaces between the runs, such as an attention context, and for what
    is exchanged with other processes.
    """
    noted = STATE.noted
    if noted and noted[0][1] and noted[0][0]:
        value: T = noted[0][0].popleft()
    else:  # in a second run that makes more calls, too: its records are refused
        value = make()
    for values, again in noted:
        if not again:
            values.append(value)
    return value


def is_recomputing() -> bool:
    """Whether this thread is running a checkpointed function again, for its gradient."""
    return STATE.recomputing
