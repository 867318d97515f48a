"""A collective that was begun, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gtensor.distributed.errors import CollectiveTimeout, DistributedError
from gtensor.system import ranges


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


class Call:
    """A call of a collective: its text (rank, name, array, line), its options, its check, if any.
    """

    def __init__(self, text: str, options: str, check: Check | None) -> None:
        self.text, self.options, self.check = text, options, check


class Work:
    """A collective in progress. `wait()` returns the array, or the Tensor, with its result.

    Until then what was given must be neither read nor written. A collective that is compared with
    those of the other ranks begins once they have called it, too: at the latest in `wait()`.
    """

    def __init__(self, call: Call, timeout: float, start: Callable[[], Pending],
                 finish: Callable[[], Any], leave: bool,
                 settle: Callable[[Work | None, float], None],
                 fail: Callable[[DistributedError], None]) -> None:
        self.call = call
        self._timeout = timeout
        self._start: Callable[[], Pending] | None = start
        self._finish: Callable[[], Any] | None = finish
        self._leave = leave  # to go on while the caller does something else
        self._settle = settle  # begins what was called before this one, and this one
        self._fail = fail
        self._pending: Pending | None = None
        self._result: Any = None

    @property
    def begun(self) -> bool:
        return self._pending is not None or self._finish is None

    def begin(self) -> None:
        """Let the engine begin."""
        assert self._start is not None
        self._pending, self._start = self._start(), None
        self._pending.watch(self._timeout, self.late)
        if self._leave:
            self._pending.leave()

    def done(self) -> bool:
        """Whether `wait()` would return at once."""
        if not self.begun:
            self._settle(None, 0.0)
        return self.begun and (self._pending is None or self._pending.done())

    def wait(self, timeout: float | None = None) -> Any:
        """The result, once it is there.

        Args:
            timeout: seconds to wait; None for the communicator's.

        Raises CollectiveTimeout, which names rank, collective and line, if it is not there then,
        DistributedError if the ranks have made different calls.
        """
        if self._finish is not None:
            seconds = self._timeout if timeout is None else timeout
            with ranges.range("wait for ranks", category="communication"):
                if self._pending is None:
                    self._settle(self, seconds)
                assert self._pending is not None
                if not self._pending.wait(seconds):
                    raise missed(self.call.text, seconds, self._fail)
                self._result, self._pending, self._finish = self._finish(), None, None
        return self._result

    def late(self, seconds: float, cause: str | None = None) -> DistributedError:
        """The error of a deadline missed, or of a failure, told to the communicator."""
        if cause is None:
            return missed(self.call.text, seconds, self._fail)
        error = DistributedError(f"{self.call.text} failed: {cause}")
        self._fail(error)
        return error


def missed(
    text: str, seconds: float, fail: Callable[[DistributedError], None]
) -> CollectiveTimeout:
    """The error of a collective that did not end in time, told to `fail`."""
    error = CollectiveTimeout(
        f"{text} did not end within {seconds:g} s; another rank has ended, hangs or makes other "
        "calls (GTENSOR_DEBUG=1 compares the calls of all ranks)")
    fail(error)
    return error
