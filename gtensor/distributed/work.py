"""A collective that was begun, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gtensor.distributed.errors import CollectiveTimeout, DistributedError
from gtensor.system import ranges
from gtensor.system.bus import bus, here


class Pending(Protocol):
    """What an engine has begun. One thread calls it."""

    def leave(self) -> None:
        """Let it go on while the caller does something else."""

    def done(self) -> bool:
        """Whether it has ended; does not wait."""

    def wait(self, seconds: float) -> bool:
        """Wait for its end, so long at most; whether it has ended.

        On CUDA the current stream waits for it, and the host does not.
        """

    def watch(self, seconds: float, late: Callable[[float, str | None], DistributedError]) -> None:
        """Where `wait` does not wait: let a thread raise `late(seconds, cause)` and end it, if it
        has not ended so long after this call, or if it fails, for a known cause."""


class Check(Protocol):
    """The signatures of one call on all ranks, on their way."""

    def done(self) -> bool:
        """Whether they are there; does not wait."""

    def wait(self, seconds: float) -> list[bytes] | None:
        """By rank; None if they are not there in time."""


_PENDING = object()  # in place of a result


class Order(Protocol):
    """The communicator that was called."""

    timeout: float

    def _settle(self, last: Work | None, seconds: float) -> None:
        """Begin, in their order, the calls that all ranks are known to make.

        Up to `last` wait for the other ranks, so long at most.
        """

    def _break(self, error: DistributedError) -> None:
        """Refuse further calls: the ranks are not at one place any more."""


class Work:
    """A collective in progress. `wait()` returns the array, or the Tensor, with its result.

    Until then what was given must be neither read nor written. A collective that is compared with
    those of the other ranks begins once they have called it, too: at the latest in `wait()`.
    """

    __slots__ = ("_finish", "_order", "_pending", "_result", "_start", "check", "leave", "text",
                 "uses")

    def __init__(self, order: Order, text: str, check: Check | None, start: Callable[[], Pending],
                 finish: Callable[[], Any], leave: bool, uses: tuple[Any, ...] = ()) -> None:
        self.text, self.check = text, check  # rank, collective, shape, line; None: it may begin
        self._order = order
        self._start, self._finish = start, finish
        self.leave = leave  # to go on while the caller does something else
        self.uses = uses  # arrays and Tensors that it reads and writes until it has ended
        self._pending: Pending | None = None  # before it has begun, and once it has ended
        self._result: Any = _PENDING

    def begin(self) -> None:
        """Let the engine begin."""
        self._pending = self._start()
        self._pending.watch(self._order.timeout, self.late)
        if self.leave:
            self._pending.leave()

    def begun(self) -> bool:
        """Whether the engine has begun it."""
        return self._pending is not None or self.ended

    @property
    def ended(self) -> bool:
        """Whether it was waited for."""
        return self._result is not _PENDING

    def done(self) -> bool:
        """Whether `wait()` would return at once."""
        if bus.listeners and here.recorder is not None:
            here.recorder.refuse("done() of a collective differs in each call; wait() for it")
        if not self.begun():
            self._order._settle(None, 0.0)
        return self._pending.done() if self._pending is not None else self.ended

    def wait(self, timeout: float | None = None) -> Any:
        """The result, once it is there.

        Args:
            timeout: seconds to wait; None for the communicator's.

        Raises CollectiveTimeout, which names rank, collective and line, if it is not there then,
        DistributedError if the ranks have made different calls.
        """
        if bus.listeners and here.recorder is not None:
            return here.recorder.exchange(wait_for_ranks, (self, timeout, *self.uses), {})
        return wait_for_ranks(self, timeout)

    def _ended(self, timeout: float | None) -> Any:
        if not self.ended:
            seconds = self._order.timeout if timeout is None else timeout
            with ranges.range("wait for ranks", category="communication"):
                if self._pending is None:
                    self._order._settle(self, seconds)
                assert self._pending is not None
                if not self._pending.wait(seconds):
                    raise missed(self.text, seconds, self._order._break)
                self._result, self._pending = self._finish(), None
        return self._result

    def late(self, seconds: float, cause: str | None = None) -> DistributedError:
        """The error of a deadline missed, or of a failure, told to the communicator."""
        if cause is None:
            return missed(self.text, seconds, self._order._break)
        error = DistributedError(f"{self.text} failed: {cause}")
        self._order._break(error)
        return error


def wait_for_ranks(work: Work, timeout: float | None, *uses: object) -> Any:
    """`work.wait(timeout)`, for replays, which see what it uses."""
    return work._ended(timeout)


def missed(
    text: str, seconds: float, fail: Callable[[DistributedError], None]
) -> CollectiveTimeout:
    """The error of a collective that did not end in time, told to `fail`."""
    error = CollectiveTimeout(
        f"{text} did not end within {seconds:g} s; another rank has ended, hangs or makes other "
        "calls (GTENSOR_DEBUG=1 compares the calls of all ranks)")
    fail(error)
    return error
