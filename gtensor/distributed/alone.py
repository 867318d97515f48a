"""A world of one process: every collective is done at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from gtensor.backend import device_of

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


class Done:
    """A collective that has ended."""

    def leave(self) -> None:
        """Nothing is left."""

    def watch(self, seconds: float, late: object) -> None:
        """It has ended."""

    def done(self) -> bool:
        return True

    def wait(self, seconds: float) -> bool:
        return True


class Alone:
    """An engine of one rank."""

    name, rank, size = "alone", 0, 1

    def all_reduce(self, array: Array, op: str) -> Done:
        return Done()

    def broadcast(self, array: Array, root: int) -> Done:
        return Done()

    def all_gather(self, array: Array, out: Array) -> Done:
        device_of(out).assign(out, array[None])
        return Done()

    def reduce_scatter(self, array: Array, out: Array, op: str) -> Done:
        device_of(out).assign(out, array[0])
        return Done()

    def exchange(self, text: bytes, seconds: float) -> list[bytes] | None:
        return [text]

    def gather(self, signature: bytes) -> NoReturn:
        raise AssertionError("a world of one compares nothing")

    def split(self, color: int, key: int) -> Alone:
        return self

    def abort(self, status: int) -> NoReturn:
        os._exit(status)
