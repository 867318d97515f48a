"""The tables of rotary positions, made once and shared by the blocks of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gtensor.array.creation import arange
from gtensor.array.dtypes import float32, float64
from gtensor.engine.tensor import Tensor
from gtensor.nn.layers import DeviceLike
from gtensor.nn.module import Module
from gtensor.ops import cos, sin

if TYPE_CHECKING:
    from gtensor.backend.typing import DTypeLike



class RotaryPositions(Module):
    """Cosines and sines of angles position / base**(2 i / features), for `F.rotary_embedding`.

    The tables grow to the next power of two of the positions asked for; they are no state.

    Source: Su et al., "RoFormer: Enhanced Transformer with rotary position embedding", 2021.
    """

    cos: Tensor  # (positions, features / 2)
    sin: Tensor

    def __init__(self, features: int, base: float = 10000.0, positions: int = 256,
                 device: DeviceLike = None, dtype: DTypeLike | None = None) -> None:
        super().__init__()
        if features < 2 or features % 2:
            raise ValueError(f"features={features} given for rotary positions; wanted an even "
                             "number, 2 or more")
        self.features = features
        self.base = base
        self._last: tuple[Any, ...] = (0, 0, None, None, None)
        self._make(positions, device, dtype)

    def _make(self, positions: int, device: DeviceLike, dtype: DTypeLike | None) -> None:
        powers = arange(0, self.features, 2, dtype=float64, device=device) / self.features
        places = arange(positions, dtype=float64, device=device).reshape((-1, 1))
        angles = places / self.base**powers  # (positions, features / 2)
        for name, table in (("cos", cos(angles)), ("sin", sin(angles))):
            self.register_buffer(name, table.to(dtype or float32), persistent=False)

    def tables(self, start: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (count, features / 2) of positions from `start` on, for `like`.

        A model's blocks ask for the same ones one after another, so the last are kept.
        """
        wanted = float64 if like.dtype == float64 else float32  # also for half types
        *asked, table, last = self._last
        if asked == [start, count, wanted] and table is self.cos:
            return last
        if start + count > len(self.cos) or self.cos.dtype != wanted:
            self._make(1 << (max(start + count, len(self.cos)) - 1).bit_length(), like.device,
                       wanted)
        made = self.cos[start:start + count], self.sin[start:start + count]
        self._last = start, count, wanted, self.cos, made
        return made

    def extra_repr(self) -> str:
        return f"{self.features}, base={self.base}"
