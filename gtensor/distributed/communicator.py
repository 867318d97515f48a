"""Communicator: collectives on arrays and tensors among ranks that run the same program."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from hashlib import blake2b
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from gtensor.backend import device_of, owner
from gtensor.distributed.alone import Done
from gtensor.distributed.errors import DistributedError
from gtensor.distributed.failing import Log, note_abort
from gtensor.distributed.work import Check, Pending, Work, missed
from gtensor.engine.handle.tensor import Tensor, wrap
from gtensor.engine.run.external_writes import ExternalWrite
from gtensor.engine.run.writable import check_writable
from gtensor.settings import settings
from gtensor.system import ranges
from gtensor.system.bus import bus, here
from gtensor.system.source_line import user_frame

if TYPE_CHECKING:
    from gtensor.backend.typing import Array

OPERATIONS = ("sum", "mean", "max", "min")
Options = dict[str, Any]  # of a collective, beside its array
F = TypeVar("F", bound=Callable[..., Any])
FIRST, EVERY = 64, 100  # calls that all ranks compare: the first ones, and later each 100th


class Engine(Protocol):
    """What carries out collectives: MPI, NCCL, or one process alone.

    A collective begins at once and in the order of the calls. Arrays are contiguous; those given as
    `out` and those reduced or broadcast in place hold the result at the end of what is pending.
    """

    name: str
    rank: int
    size: int

    def all_reduce(self, array: Array, op: str) -> Pending:
        """In place, by one of OPERATIONS."""

    def broadcast(self, array: Array, root: int) -> Pending:
        """In place."""

    def all_gather(self, array: Array, out: Array) -> Pending:
        """`out` (size, *array.shape)."""

    def reduce_scatter(self, array: Array, out: Array, op: str) -> Pending:
        """`array` (size, *out.shape), which is only read."""

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None:
        """The texts of all ranks, on the host; None if they are not there in time."""

    def gather(self, signature: bytes) -> Check:
        """Begin to gather a signature of the same length from all ranks, on the host.

        All ranks call it at the same calls of collectives. It is in no order with those, so that it
        meets its like also where the ranks make different calls.
        """

    def split(self, color: int, key: int) -> Engine:
        """An engine of the ranks with the same color, ordered by key."""

    def abort(self, status: int) -> NoReturn:
        """End all ranks at once."""


def exchanged(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What all ranks call together, and replays of a captured step call again, with arrays."""
    if bus.listeners and here.recorder is not None:
        return here.recorder.exchange(function, args, options)
    return function(*args, **options)


def _repeated(method: F) -> F:
    """The method, by `exchanged`."""
    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return exchanged(method, *args, **options)

    return call  # type: ignore[return-value]


class Communicator:
    """Collectives among ranks, each of which calls them in the same order.

    Arrays (NumPy's, CuPy's) and Tensors are taken. Contiguous ones are used where they lie; of
    others a contiguous copy is exchanged. A Tensor's write counts as an in-place one, which nothing
    records: see `gtensor.distributed.all_reduce` for an op with a gradient.

    Each collective returns a `Work`. Without `async_op` it is done; with it, the arrays must not be
    used before `wait()`. What is called beside other collectives, in an order of its own, needs a
    communicator of its own: `duplicate()`.

    The ranks compare name, options, shape and dtype of the first 64 calls of a communicator, and of
    each 100th call later, before they make them; with GTENSOR_DEBUG=1 of all calls. If they differ,
    all ranks raise DistributedError, and nothing is written. Other calls that differ give undefined
    values, or wait for each other until the deadline.

    `timeout` is in seconds, for each wait. A collective that is not done in time raises
    CollectiveTimeout; the communicator cannot be used then.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
        backend: "mpi", "nccl" or "alone".
        timeout: see above.

    Raises ValueError for a timeout that is not positive, or that no lock can wait for.
    """

    def __init__(self, engine: Engine, timeout: float = 300.0, log: Log | None = None,
                 name: str = "0") -> None:
        check_timeout(timeout)
        self._engine = engine
        self._broken: DistributedError | None = None
        self.rank, self.size, self.backend = engine.rank, engine.size, engine.name
        self.timeout = timeout
        self._log = log  # of this process's calls
        self._name = name  # the same on all ranks
        self._calls = 0
        self._waiting: deque[Work] = deque()  # which have not begun

    # -- collectives ------------------------------------------------------------------------------

    @_repeated
    def all_reduce(self, a: Any, op: str = "sum", async_op: bool = False) -> Work:
        """Reduce `a` over the ranks, in place: all have the same result then, bit for bit.

        Args:
            a: an array or Tensor of the same shape and dtype on all ranks.
            op: "sum", "mean" (of floating-point and complex numbers), "max" or "min".
            async_op: return while it is in progress.

        Floating-point numbers of 2 bytes are summed in float32 where the engine does not sum them.
        """
        self._check_operation("all_reduce", a, op)
        with _range("all_reduce", a):
            return self._in_place("all_reduce", a, async_op,
                                  partial(self._engine.all_reduce, op=op), {"op": op})

    @_repeated
    def broadcast(self, a: Any, root: int = 0, async_op: bool = False) -> Work:
        """Overwrite `a` with that of rank `root`."""
        self._check_root("broadcast", root)
        with _range("broadcast", a):
            return self._in_place("broadcast", a, async_op,
                                  partial(self._engine.broadcast, root=root), {"root": root})

    @_repeated
    def all_gather(self, a: Any, out: Any = None, async_op: bool = False) -> Work:
        """All ranks' arrays (*shape), stacked along a new first axis: (size, *shape).

        Args:
            a: of the same shape and dtype on all ranks.
            out: overwritten with the result, if given.
        """
        given = self._raw("all_gather", a)
        shape = (self.size, *given.shape)
        with _range("all_gather", a):
            return self._into("all_gather", a, given, out, shape, async_op,
                              self._engine.all_gather)

    @_repeated
    def reduce_scatter(self, a: Any, out: Any = None, op: str = "sum", async_op: bool = False
                       ) -> Work:
        """Reduce (size, *shape) over the ranks; each gets the part of its number, (*shape).

        Raises ValueError for another first length.
        """
        self._check_operation("reduce_scatter", a, op)
        given = self._raw("reduce_scatter", a)
        if not given.ndim or given.shape[0] != self.size:
            raise ValueError(f"reduce_scatter was given shape {given.shape}; wanted ({self.size}, "
                             "...), a part for each rank")
        with _range("reduce_scatter", a):
            return self._into("reduce_scatter", a, given, out, given.shape[1:], async_op,
                              partial(self._engine.reduce_scatter, op=op), {"op": op})

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank: what JSON can hold (numbers, texts, lists, dicts)."""
        _refuse_capture("the values of all_gather_object, which differ in each call")
        return self._objects("all_gather_object", value)

    @_repeated
    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        self._objects("barrier", None)

    # -- other groups -----------------------------------------------------------------------------

    def split(self, color: int, key: int | None = None) -> Communicator:
        """The communicator of the ranks that give the same color, ordered by key (None: by rank).

        All ranks call it.
        """
        if not isinstance(color, int) or not isinstance(key, int | None):
            raise TypeError(f"split was given color={color!r} and key={key!r}; wanted integers")
        _refuse_capture("a communicator that is made in the step; make it before")
        self._objects("split", None)  # so that a rank that does not come is told at the deadline
        return Communicator(self._engine.split(color, self.rank if key is None else key),
                            self.timeout, self._log, f"{self._name}.{self._calls}.{color}")

    def duplicate(self) -> Communicator:
        """The same ranks with an order of calls of their own. All ranks call it."""
        return self.split(0)

    def abort(self, message: str = "", status: int = 1) -> NoReturn:
        """End the processes of all ranks at once, after a line that names this one."""
        if message:
            print(f"rank {self.rank} of {self.size}: {message}", file=sys.stderr, flush=True)
        note_abort(status)
        self._engine.abort(status)

    def __repr__(self) -> str:
        return f"<Communicator {self.backend}, rank {self.rank} of {self.size}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Communicator was copied or pickled; wanted one made by init(), split() "
                        "or duplicate() in its process")

    # -- steps ------------------------------------------------------------------------------------

    def _objects(self, name: str, value: Any) -> list[Any]:
        with ranges.range(name, category="communication"):
            (text, check), found = self._begin(name), []

            def start() -> Done:
                found.extend(self._exchanged(json.dumps(value).encode(), text))
                return Done()

            work = Work(self, text, check, start, lambda: [*map(json.loads, found)], leave=False)
            return self._called(work).wait()

    def _in_place(self, name: str, a: Any, async_op: bool, start: Any, options: Options) -> Work:
        given = self._raw(name, a)
        check_writable(name, given)
        write = ExternalWrite(a, name) if isinstance(a, Tensor) else None
        text, check = self._begin(name, given, options)
        used = _contiguous(given)

        def finish() -> Any:
            if used is not given:
                device_of(given).assign(given, used.reshape(given.shape))
            if write is not None:
                write.end()
            return a

        return self._called(Work(
            self, text, check, partial(start, used), finish, async_op, uses=(a,)))

    def _into(self, name: str, a: Any, given: Array, out: Any, shape: tuple[int, ...],
              async_op: bool, start: Any, options: Options | None = None
                  ) -> Work:
        target = None if out is None else self._raw(name, out)
        device = device_of(given)
        if target is not None:
            check_writable(name, target)
        if target is not None and (target.shape != shape or target.dtype != given.dtype
                                   or device_of(target) is not device):
            raise ValueError(
                f"{name} was given out of shape {target.shape} and dtype {target.dtype} on "
                f"{device_of(target)}; wanted {shape}, {given.dtype} on {device}")
        write = ExternalWrite(out, name) if isinstance(out, Tensor) else None
        text, check = self._begin(name, given, options)
        direct = target is not None and target.flags.c_contiguous
        used: Any = target if direct else device.empty(shape, given.dtype, name)
        read = _contiguous(given)
        if owner(read) is owner(used):  # which engines do not allow
            read = device.copy(read, label=name)

        def finish() -> Any:
            if target is not None and not direct:
                device.assign(target, used)
            if write is not None:
                write.end()
            if out is not None:
                return out
            return wrap(used, device) if isinstance(a, Tensor) else used

        return self._called(Work(
            self, text, check, partial(start, read, used), finish, async_op, uses=(a, out)))

    def _called(self, work: Work) -> Work:
        if work.check is None and not self._waiting:
            work.begin()
        else:
            self._waiting.append(work)
            self._settle(None, 0.0)
        if not work.leave:
            work.wait()
        return work

    def _settle(self, last: Work | None, seconds: float) -> None:
        while self._waiting and not (last is not None and last.begun()):
            if self._broken is not None:
                raise self._unusable()
            work = self._waiting[0]
            if work.check is not None:
                if last is None and not work.check.done():
                    return
                self._compare(work.text, work.check, seconds)
            self._waiting.popleft().begin()

    def _break(self, error: DistributedError) -> None:
        self._broken = error

    def _unusable(self) -> DistributedError:
        return DistributedError(f"this communicator cannot be used any more: {self._broken}")

    def _begin(self, name: str, array: Array | None = None, options: Options | None = None
               ) -> tuple[str, Check | None]:
        """Count and note a call, and begin to compare it where that is due.

        The text of the call, for errors: rank, collective, array, line.
        """
        if self._broken is not None:
            raise self._unusable()
        self._calls += 1
        code = user_frame(sys._getframe(1))
        what = "" if array is None else f" of shape {array.shape} and dtype {array.dtype}"
        place = f"({code.f_code.co_filename}:{code.f_lineno})"
        text = f"rank {self.rank} of {self.size}: {name}{what} {place}"
        if self._log is not None:
            self._log.note(self._name, self._calls, text)
        if self.size == 1 or not (
                self._calls <= FIRST or self._calls % EVERY == 0 or settings.debug):
            return text, None
        given = "".join(f" with {key}={value!r}" for key, value in (options or {}).items())
        said = f"{name}{what}{given}, call {self._calls}"
        return text + given, self._engine.gather(blake2b(said.encode(), digest_size=16).digest())

    def _compare(self, text: str, check: Check, seconds: float) -> None:
        """Raise on all ranks unless all make the same call, which has not begun then."""
        found = check.wait(seconds)
        if found is None:
            raise missed(text, seconds, self._break)
        if len({*found}) > 1:
            first: dict[bytes, bytes] = {}
            for each, told in zip(found, self._exchanged(text.encode(), text), strict=True):
                first.setdefault(each, told)
            error = DistributedError(
                f"the ranks make different calls: {b'; '.join(first.values()).decode()}")
            self._break(error)
            raise error

    def _exchanged(self, told: bytes, text: str) -> list[bytes]:
        found = self._engine.exchange(told, self.timeout)
        if found is None:
            raise missed(text, self.timeout, self._break)
        return found

    def _raw(self, name: str, a: Any) -> Array:
        """The array of what was given."""
        found = a._array if isinstance(a, Tensor) else a
        if not hasattr(found, "dtype") or not hasattr(found, "strides"):
            raise TypeError(f"{name} was given {type(a).__name__}; wanted an array or a Tensor")
        return found

    def _check_operation(self, name: str, a: Any, op: str) -> None:
        kind = self._raw(name, a).dtype.kind
        if op not in OPERATIONS:
            raise ValueError(f"{name} was given op={op!r}; wanted one of {', '.join(OPERATIONS)}")
        if kind not in "iufcV" or kind == "c" and op in ("max", "min") or (
                op == "mean" and kind in "iu"):
            raise TypeError(f"{name} was given dtype {a.dtype} with op={op!r}; wanted numbers that "
                            "have one")

    def _check_root(self, name: str, root: int) -> None:
        if not isinstance(root, int) or not 0 <= root < self.size:
            raise ValueError(f"{name} was given root={root!r}; wanted a rank below {self.size}")


def _refuse_capture(what: str) -> None:
    if bus.listeners and here.recorder is not None:
        here.recorder.refuse(what)


def check_timeout(timeout: float) -> None:
    """Raise ValueError for what is no timeout of a communicator."""
    if not 0 < timeout <= TIMEOUT_MAX:
        raise ValueError(f"timeout={timeout} given; wanted a positive number of seconds, of at "
                         f"most {TIMEOUT_MAX:.0f}")


def _range(name: str, a: Any) -> AbstractContextManager[object]:
    """The range of a collective, with the bytes of its array."""
    return ranges.range(name, getattr(a, "nbytes", None), "communication")


def _contiguous(array: Array) -> Array:
    """The array, or a contiguous copy of it."""
    return array if array.flags.c_contiguous else device_of(array).copy(array, label="collective")
