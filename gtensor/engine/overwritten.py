"""The state of a tensor whose memory an op took: shape, dtype, gradient, and a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from gtensor.engine.errors import ConsumedError
from gtensor.engine.storage import Storage

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


class Consumed:
    """Replaces the array: it has shape and dtype, and every other access raises ConsumedError."""

    __slots__ = ("dtype", "nbytes", "ndim", "shape", "size", "why")

    def __init__(self, array: Array, why: str) -> None:
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.size, self.nbytes = array.size, array.nbytes
        self.why = why

    def __getattr__(self, name: str) -> NoReturn:
        refuse(self.shape, self.why)

    def __getitem__(self, key: object) -> NoReturn:
        refuse(self.shape, self.why)


class ConsumedStorage(Storage):
    """The storage of a consumed tensor: reading its version, as every op does, raises the error."""

    def __init__(self, stand_in: Consumed) -> None:
        self.__dict__["stand_in"] = stand_in

    def __setattr__(self, name: str, value: object) -> NoReturn:
        self._refuse()

    @property
    def version(self) -> int:  # type: ignore[override]
        """Raises ConsumedError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        stand_in: Consumed = self.__dict__["stand_in"]
        refuse(stand_in.shape, stand_in.why)


def refuse(shape: tuple[int, ...], why: str) -> NoReturn:
    """Raise the ConsumedError, with `why` and what to do instead."""
    raise ConsumedError(f"a tensor of shape {shape} was used after it was {why}; clone() it before "
                        "that, or use the op's out-of-place form (ABN for InPlaceABN)")
