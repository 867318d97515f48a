"""The tables of rotary positions, made once and shared by the blocks of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.creation.dtypes import float32, float64
from gtensor.creation.new_tensors import arange
from gtensor.engine.handle.tensor import Tensor
from gtensor.memory.serving import unserved
from gtensor.nn.layers import DeviceLike
from gtensor.nn.module import Module
from gtensor.ops import cos, sin, stack

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike


class RotaryPositions(Module):
    """Cosines and sines of angles position / base**(2 i / features), for `F.rotary_embedding`.

    The tables grow to the next power of two of the positions asked for; they are no state.

    Source: Su et al., "RoFormer: Enhanced Transformer with rotary position embedding", 2021.

    Raises ValueError for an odd number of features.
    """

    table: Tensor  # (2, positions, features / 2): one buffer, so that no thread sees half of it

    def __init__(self, features: int, base: float = 10000.0, positions: int = 256,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        if features < 2 or features % 2:
            raise ValueError(f"features={features} given for rotary positions; wanted an even "
                             "number, 2 or more")
        self.features = features
        self.base = base
        self._last: tuple[Any, ...] = (0, 0, None, None)
        self.register_buffer("table", self._made(positions, device, dtype or float32), False)

    def _made(self, positions: int, device: DeviceLike, dtype: DTypeLike) -> Tensor:
        powers = arange(0, self.features, 2, dtype=float64, device=device) / self.features
        places = arange(positions, dtype=float64, device=device).reshape((-1, 1))
        angles = places / self.base**powers  # (positions, features / 2)
        return stack([cos(angles), sin(angles)]).to(dtype)

    def tables(self, start: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (count, features / 2) of positions from `start` on, for `like`.

        A model's blocks ask for the same ones one after another, so the last are kept.
        """
        table = self.whole(start + count, like)
        *asked, of, last = self._last
        if asked == [start, count] and of is table:
            return last
        made = table[0, start:start + count], table[1, start:start + count]
        if table is self.table:
            # not `self._last =`, which would be counted as a change of the module
            self.__dict__["_last"] = start, count, table, made
        return made

    def whole(self, count: int, like: Tensor) -> Tensor:
        """The table, of `count` positions or more, for `like`."""
        wanted = float64 if like.dtype == float64 else float32  # also for half types
        table = self.table
        known = table.shape[1]
        if count > known or table.dtype != wanted:
            with unserved():
                table = self._made(1 << (max(count, known) - 1).bit_length(), like.device, wanted)
            if not like.device.capturing():  # else only replays give it its values
                self._set_registered("_buffers", "table", table)
        return table

    def extra_repr(self) -> str:
        return f"{self.features}, base={self.base}"
