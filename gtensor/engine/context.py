"""Modes of the engine: whether ops are recorded (per thread), and the observer (per process)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from gtensor.backend import Device
    from gtensor.backend.typing import Params, Path
    from gtensor.engine.levels import Level
    from gtensor.engine.op import Op
    from gtensor.engine.tape import Node

F = TypeVar("F", bound=Callable[..., Any])
Observer = Callable[[str, str, Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]
# Of a `grad_mode`: its mark, the mode before it, the block around it.
_Block: TypeAlias = "tuple[object, bool, _Block | None]"


_recording = ContextVar("grad_enabled", default=True)
grad_enabled = _recording.get  # for hot paths: a third of what reading `STATE` costs


class _State(threading.local):
    block: _Block | None = None  # of the innermost `grad_mode`
    anomaly = False
    recomputing = False
    differentiated: frozenset[Node] = frozenset()  # arguments of functions that `grad` is running
    levels: tuple[Level, ...] = ()  # of the running transforms, innermost last
    apart: set[int] | None = None  # `seq` of nodes that depend on none of `differentiated`

    @property
    def grad_enabled(self) -> bool:
        """Whether this thread (or asynchronous task) records ops."""
        return _recording.get()

    @grad_enabled.setter
    def grad_enabled(self, enabled: bool) -> None:
        _recording.set(enabled)


STATE = _State()


class _Observers:
    """`current`: None, or a function through which every op's path and rule is called."""

    current: Observer | None = None


observers = _Observers()


def execute(op: Op, device: Device, arrays: Sequence[Any], params: Params) -> Any:
    """The op's path for the device, through the observer if there is one."""
    path = op.cpu if device.type == "cpu" else device.path(op.name, op.gpu)
    if observers.current is None:
        return path(*arrays, **params)
    return observers.current(op.name, "forward", path, arrays, params)


class grad_mode(contextlib.ContextDecorator):
    """Ops in the block (or the decorated function) are recorded or not, in this thread.

    An interrupt at the entry of `__exit__` skips the reset of the mode. `__del__` then resets it
    when this object is collected with the traceback, unless another block set the mode meanwhile.
    """

    _mark: object = ""  # if an interrupt ends `__init__`; equals no block's mark

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._mark = object()

    def __enter__(self) -> None:
        STATE.block = self._mark, STATE.grad_enabled, STATE.block
        STATE.grad_enabled = self._enabled

    def __exit__(self, *exception: object) -> None:
        block = STATE.block
        while block is not None and block[0] is not self._mark:
            block = block[2]  # an inner block that an interrupt ended, or that ended out of order
        if block is not None:
            _, STATE.grad_enabled, STATE.block = block

    def __del__(self) -> None:
        block = STATE.block
        if block is not None and block[0] is self._mark:
            _, STATE.grad_enabled, STATE.block = block

    def _recreate_cm(self) -> grad_mode:
        """A new block for each call of a decorated function."""
        return grad_mode(self._enabled)


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
        self._before = threading.get_ident(), STATE.grad_enabled, STATE.block
        STATE.grad_enabled = enabled
        if STATE.block is not None and STATE.block[0] is not None:
            STATE.block = None, enabled, STATE.block  # so that a late `__del__` keeps the mode

    def __enter__(self) -> None:
        before, self._before = self._before, None
        if before is None or before[0] != threading.get_ident():
            return super().__enter__()
        STATE.block = self._mark, *before[1:]
        STATE.grad_enabled = self._enabled

    def __call__(self, function: F) -> F:
        # as a decorator it changes the mode in the function's calls only
        if self._before is not None:
            _, STATE.grad_enabled, STATE.block = self._before
            self._before = None
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Whether this thread records ops."""
    return STATE.grad_enabled


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
    """A checkpointed function runs again; counts per step (batch norm's) must not change."""
    before, STATE.recomputing = STATE.recomputing, True
    try:
        yield
    finally:
        STATE.recomputing = before


def is_recomputing() -> bool:
    """Whether this thread is running a checkpointed function again, for its gradient."""
    return STATE.recomputing


@contextlib.contextmanager
def detect_anomaly() -> Iterator[None]:
    """Check every gradient of a backward in the block for NaN.

    The first one raises `AnomalyError`, which names the op and the line of the forward pass. Every
    gradient is read once more (which waits for the GPU), so it is for debugging only.
    """
    before, STATE.anomaly = STATE.anomaly, True
    try:
        yield
    finally:
        STATE.anomaly = before


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Call every op through `observer(name, phase, function, args, kwargs)` within the block.

    `phase` is "forward" or "backward". The observer must return `function(*args, **kwargs)`; around
    that call it may time it, push an NVTX range or count bytes. Blocks nest: the inner observer's
    call runs through the outer one.
    """
    outer = observers.current

    def chained(
        name: str, phase: str, function: Path, args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Any:
        def call(*inner_args: object, **inner_kwargs: object) -> Any:
            return observer(name, phase, function, inner_args, inner_kwargs)

        assert outer is not None
        return outer(name, phase, call, args, kwargs)

    observers.current = observer if outer is None else chained
    try:
        yield
    finally:
        observers.current = outer
