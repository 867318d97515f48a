"""The state of a tensor whose memory an op took: shape, dtype, gradient, and a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from gtensor.engine.handle.errors import ConsumedError
from gtensor.engine.handle.stand_in import StandIn
from gtensor.engine.handle.storage import Storage

if TYPE_CHECKING:
    from gtensor.backend.typing import Array


class Consumed(StandIn):
    """Replaces the array: every access but to its shape and dtype raises ConsumedError."""

    __slots__ = ("why",)

    def __init__(self, array: Array, why: str) -> None:
        super().__init__(array.shape, array.dtype)
        self.why = why

    def refuse(self) -> NoReturn:
        raise ConsumedError(
            f"a tensor of shape {self.shape} was used after it was {self.why}; clone() it before "
            "that, or use the op's out-of-place form (ABN for InPlaceABN)")


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
        stand_in.refuse()
