"""Values that are wrong, or nearly, for most parameters, and ordinary ones.

Each is made anew for each call: a call may write into it, and one that raises may leave it changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import gtensor as gt
from gtensor import nn


def normal(*shape: int, **more: Any) -> gt.Tensor:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return gt.tensor(values, **more)


class Duck:
    """It has a shape and a dtype, and no array."""

    shape = (4, 3)
    dtype = np.dtype("f4")

    def __array__(self, *args: Any, **params: Any) -> np.ndarray:
        raise RuntimeError("no array")


class EvilIndex:
    def __index__(self) -> int:
        raise KeyError("index")


class EvilRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr")


def _loop() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _read_only() -> np.ndarray:
    found = np.ones((4, 3), np.float32)
    found.flags.writeable = False
    return found


def _consumed() -> gt.Tensor:
    """A tensor whose memory in-place batch norm has overwritten."""
    x = nn.Conv2d(1, 2, 1)(normal(1, 1, 2, 2))
    nn.InPlaceABN(2)(x)
    return x


HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None, "str": lambda: "abc", "empty str": lambda: "", "bytes": lambda: b"xx",
    "nan": lambda: float("nan"), "inf": lambda: float("inf"), "-1": lambda: -1, "0": lambda: 0,
    "-100": lambda: -100, "2**62": lambda: 2**62, "-2**62": lambda: -2**62, "2**70": lambda: 2**70,
    "True": lambda: True, "1.5": lambda: 1.5, "complex": lambda: 1j, "list": lambda: [1, 2],
    "ragged": lambda: [[1, 2], [3]], "loop": _loop, "dict": dict, "dict of x": lambda: {"x": 1},
    "set": lambda: {1}, "object": object, "evil repr": EvilRepr, "type": lambda: int,
    "lambda": lambda: lambda: 0, "lambda x": lambda: lambda x: x,
    "lambda none": lambda: lambda *args: None, "Ellipsis": lambda: ...,
    "slice": lambda: slice(0, 1), "evil index": EvilIndex, "duck": Duck, "empty list": list,
    "list of None": lambda: [None, None], "list of str": lambda: ["a", "b"],
    "object array": lambda: np.array([1, "a", None], object),
    "str array": lambda: np.array(["a", "b"]),
    "datetime": lambda: np.array(["2020-01-01"], "M8[D]"),
    "structured": lambda: np.zeros(3, [("a", "f4"), ("b", "i4")]),
    "void": lambda: np.zeros(3, "V8"),
    "big endian": lambda: np.arange(12, dtype=">f4").reshape(4, 3),
    "masked": lambda: np.ma.masked_array(np.ones((4, 3), np.float32), mask=np.eye(4, 3)),
    "matrix": lambda: np.asmatrix(np.ones((4, 3), np.float32)), "read-only": _read_only,
    "unaligned": lambda: np.zeros(49, np.uint8)[1:].view(np.float32).reshape(4, 3),
    "negative strides": lambda: np.ones((4, 3), np.float32)[::-1, ::-1],
    "longdouble": lambda: np.ones((4, 3), np.longdouble),
    "uint64 big": lambda: np.full((4, 3), 2**64 - 1, np.uint64),
    "empty": lambda: np.ones((0, 3), np.float32), "0-d": lambda: np.float32(1),
    "huge shape": lambda: (2**40, 2**40), "64 dims": lambda: np.ones((1,) * 64, np.float32),
    "neg tuple": lambda: (-1, -2), "tensor int": lambda: gt.tensor([1, 2]),
    "tensor bool": lambda: gt.tensor([True, False]), "tensor wrong shape": lambda: normal(7),
    "tensor grad": lambda: normal(4, 3, requires_grad=True),
    "tensor complex": lambda: gt.tensor(np.ones((4, 3), np.complex64)),
    "tensor f64": lambda: gt.tensor(np.ones((4, 3))), "empty tensor": lambda: normal(0),
    "0-d tensor": lambda: normal(),
    "nan tensor": lambda: gt.tensor(np.full((4, 3), np.nan, np.float32)),
    "bf16": lambda: normal(4, 3).astype(gt.bfloat16), "device name": lambda: "cuda:99",
    "dtype name": lambda: "float33", "module": lambda: nn.Linear(3, 2),
    "out of range index": lambda: gt.tensor([0, 10**9, 1, 0]),
    "negative index": lambda: gt.tensor([-(10**9), 0, 1, 2]),
    "path that is a folder": tempfile.gettempdir, "nul path": lambda: "a\0b",
    "consumed": _consumed,
}
