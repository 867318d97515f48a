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


class Work:
    """A collective in progress. `wait()` returns the array, or the Tensor, with its result.

    Until then what was given must be neither read nor written.
    """

    def __init__(self, pending: Pending, text: str, timeout: float, finish: Callable[[], Any],
                 fail: Callable[[DistributedError], None]) -> None:
        self._pending: Pending | None = pending
        self._text = text  # rank, collective, shape, line
        self._timeout = timeout
        self._finish = finish
        self._fail = fail
        self._result: Any = None

    def done(self) -> bool:
        """Whether `wait()` would return at once."""
        return self._pending is None or self._pending.done()

    def wait(self, timeout: float | None = None) -> Any:
        """The result, once it is there.

        Args:
            timeout: seconds to wait; None for the communicator's.

        Raises CollectiveTimeout, which names rank, collective and line, if it is not there then.
        """
        if self._pending is not None:
            seconds = self._timeout if timeout is None else timeout
            with ranges.range("wait for ranks", category="communication"):
                if not self._pending.wait(seconds):
                    raise missed(self._text, seconds, self._fail)
                self._result, self._pending = self._finish(), None
        return self._result


    def late(self, seconds: float, cause: str | None = None) -> DistributedError:
        """The error of a deadline missed, or of a failure, told to the communicator."""
        if cause is None:
            return missed(self._text, seconds, self._fail)
        error = DistributedError(f"{self._text} failed: {cause}")
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
