"""What replaces the array of a tensor without memory: it has shape and dtype only."""

from __future__ import annotations

from math import prod
from typing import NoReturn

import numpy as np


class StandIn:
    """Shape and dtype of an array; every other access calls `refuse`, which raises."""

    __slots__ = ("dtype", "nbytes", "ndim", "shape", "size")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)
        self.size = prod(shape)
        self.nbytes = self.size * dtype.itemsize

    def refuse(self) -> NoReturn:
        """Raise the error that says why there is no memory."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    def __getitem__(self, key: object) -> NoReturn:
        self.refuse()
